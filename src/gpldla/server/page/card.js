// A class on the page: its name, its examples, and the ways to add more.

import { button, count, el, icon, isTouch, keep } from "./dom.js";
import { DRAGGED, dropTarget } from "./drop.js";
import { linesOf } from "./items.js";
import { showMenu } from "./menu.js";

export const PICTURE_TYPES = "image/*,.heic,.heif,.tif,.tiff";
const EMPTY = isTouch ? "Add a few pictures" : "Drop or paste pictures here";
const FEW = 3; // examples, below which more are asked for

/** Make the card of a class; acts: what the page does, see board.js. Call `card.show()` after changes. */
export function makeCard(group, lesson, acts) {
  const title = el("input", {
    className: "class-name",
    maxLength: 100,
    autocomplete: "off",
    spellcheck: false,
    value: group.name,
    onfocus: () => title.select(),
    onchange: () => acts.renameGroup(group, title.value).then(() => (title.value = group.name)),
    onkeydown: (event) => {
      if (event.key === "Enter") title.blur();
      if (event.key === "Escape") {
        title.value = group.name;
        title.blur();
      }
    },
  });
  const number = el("span", { className: "class-count" });
  const more = el("button", { type: "button", className: "only-icon quiet", "aria-haspopup": "menu" }, icon("more"));
  more.addEventListener("click", () => showMenu(more, `Class ${group.name}`, entriesFor(group, lesson, acts, title)));
  const shots = el("ul", { className: lesson.kind === "images" ? "shots" : "texts" });
  const adding = lesson.kind === "images" ? pictureAdder(group, acts) : textAdder(group, acts);
  const head = el("div", { className: "card-head" }, el("span", { className: "dot" }), title, number, more);
  const card = el("section", { className: `card colour-${group.colour}` }, head, shots, adding.element);
  dropTarget(card, {
    example: (id) => acts.relabel(id, group),
    ...(lesson.kind === "images"
      ? { files: (files) => acts.add(group, files.map((file) => ({ file }))) }
      : { text: (text) => acts.add(group, linesOf(text).map((line) => ({ text: line }))) }),
  });
  card.group = group;
  card.show = () => {
    const examples = lesson.examplesOf(group);
    const waiting = lesson.pending.filter((one) => one.group === group.key);
    if (document.activeElement !== title) title.value = group.name;
    title.setAttribute("aria-label", `Name of the class ${group.name}`);
    card.setAttribute("aria-label", `Class ${group.name}`);
    more.setAttribute("aria-label", `More about ${group.name}`);
    number.textContent = examples.length ? String(examples.length) : "";
    number.title = count(examples.length, lesson.kind === "images" ? "picture" : "text");
    card.classList.toggle("empty", !examples.length && !waiting.length);
    const make = lesson.kind === "images" ? makeShot : makeText;
    keep(shots, [...examples, ...waiting], (one) => one.id ?? one.key, (one) => make(one, group, lesson, acts));
    shots.hidden = !shots.children.length;
    roving(shots);
    adding.show(examples.length, group.name);
  };
  return card;
}

function entriesFor(group, lesson, acts, title) {
  const entries = [{ text: "Rename", icon: "edit", act: () => title.focus() }];
  for (const other of lesson.groups.filter((one) => one !== group && lesson.examplesOf(group).length)) {
    entries.push({ text: `Merge into ${other.name}`, colour: other.colour, act: () => acts.renameGroup(group, other.name) });
  }
  entries.push({ text: "Remove this class", icon: "remove", isDanger: true, act: () => acts.removeGroup(group) });
  return entries;
}

function pictureAdder(group, acts) {
  const input = el("input", { type: "file", accept: PICTURE_TYPES, multiple: true, hidden: true });
  input.addEventListener("change", () => {
    const items = [...input.files].map((file) => ({ file }));
    input.value = ""; // so that the same file can be chosen again
    acts.add(group, items);
  });
  const choose = button("Choose", "picture", () => input.click());
  const camera = button("Camera", "camera", () => acts.photograph(group));
  const hint = el("p", { className: "hint" });
  const element = el("div", { className: "adder" }, hint, el("div", { className: "row" }, choose, camera), input);
  const show = (number, name) => {
    hint.textContent = number === 0 ? EMPTY : number < FEW ? "A few more make it surer" : "";
    choose.setAttribute("aria-label", `Choose pictures of ${name}`);
    camera.setAttribute("aria-label", `Camera for ${name}`);
    input.setAttribute("aria-label", `Pictures of ${name}`);
  };
  return { element, show };
}

function textAdder(group, acts) {
  const area = el("textarea", { rows: 2, placeholder: "Write or paste an example; one per line" });
  const add = () => {
    const items = linesOf(area.value).map((text) => ({ text }));
    area.value = "";
    area.focus();
    if (items.length) acts.add(group, items);
  };
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    add();
  });
  const send = button("Add", "add", add);
  const element = el("div", { className: "adder" }, area, el("div", { className: "row" }, send));
  const show = (number, name) => {
    area.setAttribute("aria-label", `Texts of ${name}, one per line`);
    send.setAttribute("aria-label", `Add to ${name}`);
  };
  return { element, show };
}

function makeShot(example, group, lesson, acts) {
  const name = example.name ?? "picture";
  const inside = el("img", { alt: "", draggable: false, decoding: "async" });
  if (example.url) inside.src = example.url;
  else if (example.thumbnail) acts.showPicture(inside, example.thumbnail);
  else inside.replaceWith(inside);
  const face = example.url || example.thumbnail ? inside : el("span", { className: "no-picture" }, name);
  return tile(example, `${name}, an example of ${group.name}`, "shot", face, lesson, acts);
}

function makeText(example, group, lesson, acts) {
  const face = el("span", { className: "text" }, example.text ?? example.name);
  return tile(example, null, "text-example", face, lesson, acts);
}

/** Make the item of an example in a list; those on their way cannot be touched yet. */
function tile(example, label, className, face, lesson, acts) {
  if (!example.id) return el("li", { className: `${className} pending`, "aria-busy": "true" }, face);
  const inside = el("button", { type: "button", className: "example", "aria-haspopup": "menu" }, face);
  if (label) inside.setAttribute("aria-label", label);
  const act = () => showMenu(inside, "This example", entriesOf(example, lesson, acts));
  inside.addEventListener("click", act);
  const remove = el("button", { type: "button", className: "remove", tabIndex: -1, title: "Remove" }, icon("close"));
  remove.setAttribute("aria-label", `Remove ${example.name}`);
  remove.addEventListener("click", () => acts.remove(example.id));
  const item = el("li", { className, draggable: true }, inside, remove);
  item.dataset.id = example.id;
  item.addEventListener("dragstart", (event) => {
    event.dataTransfer.setData(DRAGGED, example.id);
    event.dataTransfer.effectAllowed = "move";
    // Afterwards: Chromium ends a drag whose element changes as it begins.
    setTimeout(() => document.body.classList.add("dragging-example"));
  });
  item.addEventListener("dragend", () => document.body.classList.remove("dragging-example"));
  item.addEventListener("keydown", (event) => {
    if (event.key !== "Delete" && event.key !== "Backspace") return;
    const next = item.nextElementSibling ?? item.previousElementSibling;
    (next?.querySelector("button") ?? item.closest(".card").querySelector(".adder button, .adder textarea")).focus();
    acts.remove(example.id);
  });
  return item;
}

function entriesOf(example, lesson, acts) {
  const now = lesson.examples.find((one) => one.id === example.id);
  const others = lesson.groups.filter((one) => one.name !== now?.label);
  const moves = others.map((one) => ({ text: one.name, colour: one.colour, act: () => acts.relabel(example.id, one) }));
  const remove = { text: "Remove", icon: "remove", isDanger: true, act: () => acts.remove(example.id) };
  return [...(moves.length ? [{ heading: "Move to" }] : []), ...moves, remove];
}

/** Make a list one stop of the Tab key; arrow keys go from example to example. */
function roving(list) {
  const buttons = [...list.querySelectorAll(".example")];
  if (!buttons.some((one) => one.tabIndex === 0 && one.dataset.stop)) {
    buttons.forEach((one, index) => stop(one, index === 0));
  } else {
    for (const one of buttons) if (!one.dataset.stop) stop(one, false);
  }
  if (list.isRoving) return;
  list.isRoving = true;
  list.addEventListener("focusin", (event) => {
    const now = event.target.closest(".example");
    if (now) for (const one of list.querySelectorAll(".example")) stop(one, one === now);
  });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const all = [...list.querySelectorAll(".example")];
    const at = all.indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    all[(at + step + all.length) % all.length].focus();
  });
}

function stop(one, isStop) {
  one.tabIndex = isStop ? 0 : -1;
  if (isStop) one.dataset.stop = "yes";
  else delete one.dataset.stop;
}
