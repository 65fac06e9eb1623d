// What a first-time visitor sees: what this is, in three steps, and a way to try it at once.

import { drawBird, SIDE } from "./birds.js";
import { button, el, isTouch } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { linesOf } from "./items.js";

const SHOWN = [["Robin", 3], ["Blue tit", 12], ["Chaffinch", 23]];
const WORDS = {
  images: {
    title: "Teach a classifier with a few pictures",
    steps: [`Name each class, and ${isTouch ? "choose" : "drop or choose"} three or more pictures of it.`, `${isTouch ? "Choose" : "Drop"} a new one under “Try it”.`, "See what it is, how sure that is, and why."],
  },
  texts: {
    title: "Teach a classifier with a few texts",
    steps: ["Name each class, and write or paste three or more texts of it.", "Write a new one under “Try it”.", "See what it is, how sure that is, and why."],
  },
};
const QUOTES = linesOf("Where is my parcel?\nI was charged twice.\nThe app closes by itself.");

/** Make the welcome of a kind; acts: see board.js. */
export function makeHero(kind, acts) {
  const { title, steps } = WORDS[kind];
  const list = el("ol", { className: "steps" }, ...steps.map((step) => el("li", {}, step)));
  const ways = el(
    "div",
    { className: "row" },
    button(EXAMPLES[kind].name, kind === "images" ? "bird" : "message", () => acts.showExample(), { className: "primary" }),
    button("Open a classifier", "upload", () => acts.openFile(), { className: "quiet" }),
  );
  const words = el("div", { className: "hero-words" }, el("h2", {}, title), list, ways);
  const art = kind === "images" ? SHOWN.map(([species, seed]) => bird(species, seed)) : QUOTES.map((text) => el("span", { className: "quote" }, text));
  return el("section", { className: "hero", "aria-label": "Welcome" }, words, el("div", { className: `art ${kind}`, "aria-hidden": "true" }, ...art));
}

function bird(species, seed) {
  const canvas = el("canvas", { width: SIDE, height: SIDE });
  drawBird(canvas.getContext("2d"), species, seed);
  return canvas;
}
