// Classifiers as files: take one away, bring one back, or begin anew.

import { button, el } from "./dom.js";
import { attempt, say } from "./notices.js";

/** Make the section with the downloads; acts: see board.js. Call `section.show()` after changes. */
export function makeTakeaway(lesson, acts) {
  const heading = el("h2", { id: `${lesson.kind}-take` }, "Take it with you");
  const own = button("Download classifier", "download", () => acts.download("safetensors"), { className: "primary" });
  let isMaking = false;
  const onnx = button("Download ONNX", "download", async () => {
    isMaking = true; // for seconds, in which nothing else would show that it does
    section.show();
    await acts.download("onnx");
    isMaking = false;
    section.show();
  });
  const command = el("code", {});
  const section = el(
    "section",
    { className: "panel takeaway", "aria-labelledby": heading.id },
    el("div", {}, heading, el("p", { className: "hint" }, "One file, with all that was taught. Open it here again, or use it from the command line:"), command),
    el(
      "div",
      { className: "row" },
      own,
      onnx,
      button("Open a classifier", "upload", () => acts.openFile()),
      button("Start anew", "add", () => acts.restart()),
    ),
  );
  section.show = () => {
    section.hidden = lesson.isEmpty;
    own.disabled = !lesson.isReady;
    onnx.disabled = !lesson.isReady || isMaking;
    onnx.lastElementChild.textContent = isMaking ? "Making the ONNX file …" : "Download ONNX";
    const file = `${fileStem(lesson.task?.name ?? "")}.safetensors`;
    command.textContent = `gpldla predict ${file} ${lesson.kind === "images" ? "new.jpg" : '"A new text"'}`;
  };
  return section;
}

/** Fetch a task's classifier, and hand it to the browser as a download. */
export async function download(api, lesson, form) {
  const response = await api.send("GET", `${lesson.path}/classifier?format=${form}`);
  const url = URL.createObjectURL(await response.blob());
  const link = el("a", { href: url, download: `${fileStem(lesson.task.name)}.${form}` });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** Let the visitor choose a classifier's file, and open it in the tab of its kind: `open(task)`. */
export function chooseFile(lesson, open) {
  const input = el("input", { type: "file", accept: ".safetensors", hidden: true, "aria-label": "A classifier's file" });
  input.addEventListener("change", async () => {
    const [file] = input.files;
    input.remove();
    const task = file && (await attempt(() => lesson.upload(file)));
    if (!task) return;
    await attempt(() => open(task));
    say(`Opened ${task.name}.`);
  });
  input.addEventListener("cancel", () => input.remove());
  document.body.append(input);
  input.click();
}

function fileStem(name) {
  return name.replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^[-.]+|[-.]+$/g, "").toLowerCase() || "classifier";
}
