// The page of one classifier: what is dropped, chosen, pasted or written is answered on this machine.

const facts = JSON.parse(document.getElementById("facts").textContent);
const SHOWN = 4; // classes per answer
const MOST_TEXTS = 1000;
const $ = (id) => document.getElementById(id);

function el(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

const percent = (share) => `${Math.round(100 * share)} %`;

/** The bytes of a part of this file: base64 of gzip. */
async function embedded(id) {
  const element = $(id);
  const text = atob(element.textContent.trim());
  element.remove(); // it is large, and not needed twice
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function makeSession() {
  const code = await embedded("runtime");
  const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  const ort = await import(address);
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmBinary = (await embedded("wasm")).buffer;
  const session = await ort.InferenceSession.create(await embedded("graph"));
  return { ort, session };
}

/** What the graph takes for a picture file or a text. */
const inputs = {
  async picture(ort, file) {
    const options = { imageOrientation: "from-image", premultiplyAlpha: "none", colorSpaceConversion: "none" };
    const bitmap = await createImageBitmap(file, options);
    const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(bitmap, 0, 0);
    const { data } = context.getImageData(0, 0, bitmap.width, bitmap.height);
    const pixels = squarePixels(data, bitmap.width, bitmap.height, facts.preprocessing);
    const side = facts.preprocessing.resized;
    return { images: new ort.Tensor("uint8", pixels, [1, side, side, pixels.length / side ** 2]) };
  },
  async text(ort, text) {
    tokenise ??= makeTokenizer(facts.tokenizer);
    const numbers = tokenise(text);
    const row = (values) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), [1, numbers.length]);
    return { tokens: row(numbers), mask: row(numbers.map(() => 1)) };
  },
};
let tokenise;

async function answer({ ort, session }, item) {
  const results = await session.run(await inputs[facts.kind](ort, item));
  return {
    probabilities: [...results.probabilities.data],
    noneOfThese: results.none_of_these?.data[0] ?? null,
    unsure: Boolean(results.unsure.data[0]),
  };
}

function shownAnswer({ probabilities, noneOfThese, unsure }) {
  const ranked = probabilities.map((p, c) => [p, facts.classes[c]]).sort((a, b) => b[0] - a[0]);
  const bars = ranked.slice(0, SHOWN).map(([p, name]) => {
    const fill = el("span", { className: "fill" });
    fill.style.width = `${100 * p}%`;
    const track = el("span", { className: "track" }, fill);
    return el("li", {}, el("span", { className: "name" }, String(name)), track, el("span", { className: "percent" }, percent(p)));
  });
  const verdict = unsure ? `unsure, perhaps ${ranked[0][1]}` : String(ranked[0][1]);
  const parts = [el("h2", { className: unsure ? "unsure" : "sure" }, verdict), el("ul", {}, ...bars)];
  if (noneOfThese !== null) parts.push(el("p", { className: "hint" }, `None of these: ${percent(noneOfThese)}`));
  return parts;
}

/** Add a card for an item at the top, and answer in it. */
async function show(ready, face, item) {
  const body = el("div", { className: "body" }, el("p", { className: "hint" }, "…"));
  const card = el("article", {}, face, body);
  $("answers").prepend(card);
  try {
    const given = await answer(await ready, item);
    body.replaceChildren(...shownAnswer(given));
    card.dataset.answer = JSON.stringify(given);
  } catch (error) {
    const what = facts.kind === "picture" ? `${item.name} cannot be read as a picture.` : error.message;
    body.replaceChildren(el("p", { className: "problem" }, what));
    card.dataset.problem = String(error);
  }
}

/** One item after the other: the runtime has one thread. */
function inTurn() {
  let last = Promise.resolve();
  return (task) => (last = last.then(task));
}

function takePictures(ready) {
  const queue = inTurn();
  const take = (files) => {
    for (const file of files) {
      const face = el("img", { alt: file.name, title: file.name, src: URL.createObjectURL(file) });
      queue(() => show(ready, face, file));
    }
  };
  $("file").addEventListener("change", (event) => {
    take([...event.target.files]);
    event.target.value = "";
  });
  addEventListener("paste", (event) => take([...event.clipboardData.files]));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    take([...event.dataTransfer.files]);
  });
}

function takeTexts(ready) {
  const queue = inTurn();
  $("texts").addEventListener("submit", (event) => {
    event.preventDefault();
    const lines = $("text").value.split("\n").filter((line) => line.trim());
    for (const line of lines.slice(0, MOST_TEXTS)) queue(() => show(ready, el("blockquote", {}, line), line));
    $("text").value = "";
  });
}

const ready = makeSession();
ready.then(
  () => ($("state").textContent = "Ready."),
  (error) => ($("state").textContent = `This browser cannot run the classifier: ${error.message}`),
);
if (facts.kind === "picture") takePictures(ready);
else takeTexts(ready);
