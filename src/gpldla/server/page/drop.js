// What is dragged, dropped and pasted.

export const DRAGGED = "application/x-gpldla-example";

/**
 * Let an element take files, texts or examples of this page that are dropped onto it.
 * takes: {files(files), text(text), example(id)}, each of them optional
 */
export function dropTarget(element, takes) {
  let depth = 0; // dragenter and dragleave come for every child
  const leave = () => {
    depth = 0;
    element.classList.remove("over");
  };
  element.addEventListener("dragenter", (event) => {
    if (!kindOf(event, takes)) return;
    event.preventDefault();
    depth += 1;
    element.classList.add("over");
  });
  element.addEventListener("dragover", (event) => {
    const kind = kindOf(event, takes);
    if (!kind) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = kind === "example" ? "move" : "copy";
  });
  element.addEventListener("dragleave", () => {
    depth -= 1;
    if (depth <= 0) leave();
  });
  element.addEventListener("drop", async (event) => {
    const kind = kindOf(event, takes);
    if (!kind) return;
    event.preventDefault();
    event.stopPropagation();
    leave();
    if (kind === "example") takes.example(event.dataTransfer.getData(DRAGGED));
    else if (kind === "text") takes.text(event.dataTransfer.getData("text/plain"));
    else takes.files((await droppedFiles(event.dataTransfer)).map(({ file }) => file));
  });
}

/** Return the files of a drop, those in folders too, as [{file, folder}]; folder: "" for files outside of one. */
export async function droppedFiles(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter((entry) => entry);
  if (!entries.some((entry) => entry.isDirectory)) return [...transfer.files].map((file) => ({ file, folder: "" }));
  const lists = await Promise.all(entries.map((entry) => filesBelow(entry, "")));
  return lists.flat();
}

async function filesBelow(entry, folder) {
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
    return entry.name.startsWith(".") ? [] : [{ file, folder }];
  }
  const reader = entry.createReader();
  const children = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject)); // at most 100 each
    if (!some.length) break;
    children.push(...some);
  }
  const lists = await Promise.all(children.map((child) => filesBelow(child, entry.name)));
  return lists.flat();
}

function kindOf(event, takes) {
  const types = [...event.dataTransfer.types];
  if (types.includes(DRAGGED)) return takes.example ? "example" : null;
  if (types.includes("Files")) return takes.files ? "files" : null;
  return types.includes("text/plain") && takes.text ? "text" : null;
}
