// The panel where something new is tried: a picture or a text goes in, an answer comes out.

import { makeAnswer } from "./answer.js";
import { PICTURE_TYPES } from "./card.js";
import { button, el, icon, isTouch, keep } from "./dom.js";
import { dropTarget } from "./drop.js";

const TYPING_PAUSE = 200; // ms

/** Make the panel; acts: see board.js. Call `panel.show()` after changes. */
export function makeTrialPanel(kind, trials, lesson, acts) {
  const heading = el("h2", { id: `${kind}-try` }, "Try it");
  const answer = makeAnswer(acts);
  const wait = el("p", { className: "wait" });
  const next = el("button", { type: "button", className: "next", onclick: () => trials.select(trials.next) });
  const input = kind === "images" ? pictureInput(trials, acts) : textInput(trials, acts);
  const panel = el("section", { className: "try panel", "aria-labelledby": heading.id }, heading, input.element, next, wait, answer);
  panel.show = () => {
    input.show();
    const item = trials.selected;
    panel.classList.toggle("busy", trials.isBusy);
    answer.show(item, lesson.groups);
    next.hidden = !trials.next || trials.next === item || trials.items.length < 2 || item?.prediction === null;
    if (!next.hidden) next.replaceChildren(icon("hint"), el("span", {}, `Say next what ${trials.next.name} is: it teaches most`));
    const isLacking = item !== null && item.prediction === null;
    wait.hidden = !isLacking;
    wait.textContent = isLacking ? acts.whatIsMissing() : "";
  };
  return panel;
}

function pictureInput(trials, acts) {
  const input = el("input", { type: "file", accept: PICTURE_TYPES, multiple: true, hidden: true, "aria-label": "Pictures to try" });
  input.addEventListener("change", () => {
    const files = [...input.files];
    input.value = "";
    acts.tryFiles(files);
  });
  const shown = el("img", { className: "trial-picture", hidden: true });
  const invitation = el(
    "div",
    { className: "invitation" },
    icon("picture"),
    el("p", { className: "strong" }, isTouch ? "Add a new picture" : "Drop a new picture here"),
    el("p", { className: "hint" }, `one that the classes above have not seen${isTouch ? "" : "; or paste it"}`),
  );
  const choose = button("Choose", "picture", () => input.click(), { ariaLabel: "Choose a picture to try" });
  const camera = button("Camera", "camera", () => acts.photograph(null), { ariaLabel: "Camera for something to try" });
  const clear = button("Clear", "close", () => trials.clear(), { className: "only-icon quiet", title: "Clear" });
  const stage = el("div", { className: "stage" }, shown, invitation);
  const strip = el("ul", { className: "strip", "aria-label": "Pictures tried" });
  const element = el("div", {}, stage, el("div", { className: "row tools" }, strip, choose, camera, clear), input);
  dropTarget(stage, { files: (files) => acts.tryFiles(files) });
  const show = () => {
    const item = trials.selected;
    shown.hidden = item === null;
    invitation.hidden = item !== null;
    clear.hidden = item === null;
    if (item && shown.src !== item.url) {
      shown.src = item.url;
      shown.alt = `The picture to try, ${item.name}`;
    }
    strip.hidden = trials.items.length < 2;
    keep(strip, trials.items, (one) => one.key, (one) => inStrip(one, trials), (child, one) => {
      const face = child.firstElementChild;
      face.setAttribute("aria-pressed", String(one === item));
      const best = one.prediction?.probabilities[0];
      face.setAttribute("aria-label", best ? `${one.name}: ${best.label}` : one.name);
    });
  };
  return { element, show };
}

function inStrip(item, trials) {
  const image = el("img", { alt: "", src: item.url });
  return el("li", {}, el("button", { type: "button", className: "in-strip", onclick: () => trials.select(item) }, image));
}

function textInput(trials, acts) {
  const area = el("textarea", {
    rows: 4,
    className: "trial-text",
    placeholder: "Write or paste a new text here",
    "aria-label": "A text to try",
  });
  let timer = 0;
  area.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => acts.tryText(area.value), TYPING_PAUSE);
  });
  dropTarget(area, {
    text: (text) => {
      area.value = text;
      acts.tryText(text);
    },
  });
  const show = () => {
    if (document.activeElement !== area && area.value.trim() !== (trials.selected?.text ?? "")) {
      area.value = trials.selected?.text ?? "";
    }
  };
  return { element: el("div", {}, area), show };
}
