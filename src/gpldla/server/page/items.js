// Pictures and texts on their way to the server: made smaller where that loses nothing, and sent in batches.

const LONGEST_SIDE = 1600; // networks see 224 to 518 pixels
const LARGE = 1.5e6; // bytes
const AT_ONCE = 3; // pictures: each takes some fifty megabytes while it is made smaller
const SAFETY = 0.9; // of the limit, for the rest of the body

/** Return a picture's file, smaller if it is large; one that this browser cannot read is left as it is. */
async function lighter(file) {
  if (file.size < LARGE) return file;
  let bitmap;
  try {
    bitmap = await createImageBitmap(file); // turned as its camera says
  } catch {
    return file;
  }
  const scale = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(bitmap.width * scale);
  canvas.height = Math.round(bitmap.height * scale);
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // beneath what is transparent
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  return blob && blob.size < file.size ? new File([blob], file.name, { type: "image/jpeg" }) : file;
}

/** Return the files of pictures, the large ones smaller. */
export async function allLighter(files) {
  const light = [...files];
  let next = 0;
  const work = async () => {
    for (let at = next++; at < files.length; at = next++) light[at] = await lighter(files[at]);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return light;
}

/** Split items into lists that one request may carry. */
export function batchesOf(items, limits) {
  const batches = [];
  let bytes = Infinity;
  const most = SAFETY * (items[0]?.file ? limits.upload_bytes : limits.json_bytes);
  for (const item of items) {
    const size = item.file ? item.file.size : 4 * item.text.length;
    const full = batches.length && batches.at(-1).length >= limits.items_per_request;
    if (full || bytes + size > most) {
      batches.push([]);
      bytes = 0;
    }
    batches.at(-1).push(item);
    bytes += size;
  }
  return batches;
}

/** Return the body of a request with items, with a label or without. */
export function bodyOf(items, label) {
  const named = label === undefined ? {} : { label };
  if (items[0].file === undefined) return { ...named, texts: items.map((item) => item.text) };
  const form = new FormData();
  if (label !== undefined) form.append("label", label);
  for (const item of items) form.append("files", item.file, item.file.name || "picture.png");
  return form;
}

/** Return the texts of several lines, one each. */
export function linesOf(text) {
  return text.split(/\r?\n/).map((line) => line.trim()).filter((line) => line);
}
