// The board of one tab: the classes on the left, the answer on the right, and below what comes of it.

import { photograph } from "./camera.js";
import { makeCard } from "./card.js";
import { button, count, el, icon, keep } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { makeHero } from "./hero.js";
import { attempt, say } from "./notices.js";
import { makeQuality } from "./quality.js";
import { chooseFile, download, makeTakeaway } from "./takeaway.js";
import { makeTrialPanel } from "./trial_panel.js";
import { told } from "./undo.js";

const THING = { images: "picture", texts: "text" };
const SAID = 2; // failures that are named

/**
 * Make the board of a lesson; it redraws itself when the lesson or the trials change.
 * `opened(task)` shows a task that was uploaded, in the tab of its kind.
 */
export function makeBoard(lesson, trials, api, opened) {
  const acts = actsOf(lesson, trials, api);
  Object.assign(acts, actsOnAll(lesson, trials, api, opened));
  const hero = makeHero(lesson.kind, acts);
  const head = boardHead(lesson, acts);
  const advice = el("p", { className: "advice" }, icon("hint"), el("span", {}));
  const cards = el("div", { className: "in-cards" });
  const add = button("Add a class", "add", () => acts.addGroup() && acts.nameNewest(), { className: "add-class" });
  acts.nameNewest = () => cards.lastElementChild.querySelector(".class-name").focus();
  const heading = el("h2", { id: `${lesson.kind}-teach` }, "Teach");
  const teach = el("section", { className: "teach", "aria-labelledby": heading.id }, heading, el("div", { className: "cards" }, cards, add));
  const panel = makeTrialPanel(lesson.kind, trials, lesson, acts);
  const below = [makeQuality(lesson, acts), makeTakeaway(lesson, acts)];
  const columns = el("div", { className: "columns" }, teach, panel, ...below);
  const board = el("div", { className: "board" }, hero, head, advice, columns);
  board.acts = acts;
  board.show = () => {
    hero.hidden = !lesson.isEmpty;
    head.show();
    advice.hidden = lesson.isEmpty || !lesson.task;
    advice.lastElementChild.textContent = lesson.task?.advice ?? "";
    keep(cards, lesson.groups, (group) => group.key, (group) => makeCard(group, lesson, acts), (card) => card.show());
    panel.show();
    for (const part of below) part.show();
  };
  lesson.addEventListener("change", () => {
    board.show();
    attempt(() => trials.follow());
  });
  trials.addEventListener("change", () => panel.show());
  return board;
}

function boardHead(lesson, acts) {
  const name = el("input", { className: "task-name", maxLength: 100, "aria-label": "Name of this classifier", autocomplete: "off" });
  name.addEventListener("change", () => acts.rename(name.value));
  name.addEventListener("keydown", (event) => event.key === "Enter" && name.blur());
  const summary = el("p", { className: "summary" });
  const undo = button("Undo", "undo", () => acts.undo(), { className: "undo" });
  const head = el("div", { className: "board-head" }, el("div", {}, name, summary), undo);
  head.show = () => {
    head.hidden = lesson.isEmpty && !lesson.undos.length;
    if (document.activeElement !== name) name.value = lesson.task?.name ?? "Untitled";
    const classes = lesson.task?.classes.length ?? 0;
    summary.textContent = `${count(classes, "class")}, ${count(lesson.examples.length, THING[lesson.kind])}`;
    const last = lesson.undos.at(-1);
    undo.disabled = !last;
    undo.title = last ? `Undo: ${told(last, lesson.kind)} (Ctrl+Z)` : "";
  };
  return head;
}

/** Return what the parts of a board can do; whatever fails is said, and nothing is thrown. */
function actsOf(lesson, trials, api) {
  const changing = (act) => async (...given) => {
    const before = lesson.undos.at(-1);
    await attempt(() => act(...given));
    const last = lesson.undos.at(-1);
    if (last && last !== before) sayUndoable(`${told(last, lesson.kind)}.`);
  };
  const sayUndoable = (message) => {
    const note = lesson.undos.at(-1);
    const act = () => (lesson.undos.at(-1) === note ? acts.undo() : say("More was changed since; undo that first."));
    say(message, { action: { text: "Undo", act } });
  };
  const acts = {
    add: async (group, items) => {
      if (!items.length) return;
      await attempt(async () => sayFailures(await lesson.add(group, items)));
    },
    addGroup: (name) => lesson.addGroup(name),
    relabel: changing((id, group) => lesson.relabel(id, group)),
    remove: changing((id) => lesson.remove(id)),
    renameGroup: changing((group, name) => lesson.renameGroup(group, name)),
    removeGroup: changing((group) => lesson.removeGroup(group)),
    rename: (name) => attempt(() => lesson.rename(name)),
    undo: () =>
      attempt(async () => {
        const note = await lesson.undo();
        say(note ? `Undone: ${lowered(told(note, lesson.kind))}.` : "There is nothing to undo.");
      }),
    tryFiles: (files) => attempt(() => trials.add(files)),
    tryText: (text) => attempt(() => trials.write(text)),
    teach: async (item, known) => {
      const group = known ?? lesson.addGroup();
      trials.remove(item);
      await acts.add(group, [item.file ? { file: item.file } : { text: item.text }]);
      sayUndoable(`Added to ${group.name}.`);
      if (!known) acts.nameNewest();
    },
    photograph: (group) =>
      group
        ? photograph(group.name, (file) => acts.add(group, [{ file }]))
        : photograph("Something to try", (file) => acts.tryFiles([file]), { isSingle: true }),
    showPicture: async (image, path) => {
      image.src = (await attempt(() => api.picture(path))) ?? "";
    },
    whatIsMissing: () => lesson.task?.advice ?? `Add ${THING[lesson.kind]}s to at least two classes first.`,
  };
  return acts;
}

/** Return what concerns the lesson as a whole. */
function actsOnAll(lesson, trials, api, opened) {
  const add = async (group, items) => sayFailures(await lesson.add(group, items));
  return {
    showExample: () => attempt(() => EXAMPLES[lesson.kind].teach(lesson, trials, add)),
    download: (form) => attempt(() => download(api, lesson, form)),
    openFile: () => chooseFile(lesson, opened),
    restart: () => {
      trials.clear();
      lesson.restart();
      say("Started anew; what was taught before is kept for now.", {
        action: { text: "Undo", act: () => attempt(() => lesson.undo()) },
      });
    },
  };
}

function lowered(sentence) {
  return sentence[0].toLowerCase() + sentence.slice(1);
}

function sayFailures(failures) {
  const messages = [...new Set(failures.map(({ message }) => message))];
  for (const message of messages.slice(0, SAID)) say(message, { isError: true });
  if (messages.length > SAID) say(`${messages.length - SAID} more errors; ${failures.length} in all could not be added.`, { isError: true });
}
