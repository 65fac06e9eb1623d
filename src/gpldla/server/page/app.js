// The page's beginning: ask the server what it does, make a board for each kind, and show one of them.

import { Api } from "./api.js";
import { makeBoard } from "./board.js";
import { button, el } from "./dom.js";
import { droppedFiles } from "./drop.js";
import { Lesson } from "./lesson.js";
import { remember, remembered } from "./memory.js";
import { attempt, noticeRegion, say } from "./notices.js";
import { makeReader } from "./reader.js";
import { askToken } from "./token.js";
import { Trials } from "./trials.js";

const api = new Api(askToken);
const boards = {};
let reader = null; // instead of boards, where the server answers for one classifier

async function start() {
  document.body.append(noticeRegion());
  const server = await attempt(() => api.json("GET", "/v1/server"));
  const main = document.querySelector("main");
  main.removeAttribute("aria-busy");
  if (!server) {
    main.replaceChildren(el("p", { className: "wait" }, button("Try again", null, () => location.reload())));
    return;
  }
  if (server.read_only) {
    reader = await makeReader(server, api);
    main.append(reader);
    await attempt(() => reader.resume());
    addEventListeners();
    return;
  }
  for (const kind of server.kinds) await attempt(() => addBoard(kind, server));
  const wanted = remembered("tab");
  select(server.kinds.includes(wanted) ? wanted : server.kinds[0]);
  document.querySelector("[role=tablist]").hidden = server.kinds.length < 2;
  addEventListeners();
}

async function addBoard(kind, server) {
  const lesson = new Lesson(kind, api, server.limits);
  const path = () => (lesson.isReady ? `${lesson.path}/predict` : null);
  const version = () => `${lesson.task?.id} ${lesson.task?.revision}`;
  const trials = new Trials(kind, api, server.limits, path, version, () => `${lesson.path}/suggest`);
  const board = makeBoard(lesson, trials, api, opened);
  boards[kind] = { lesson, trials, board };
  document.getElementById(`panel-${kind}`).append(board);
  if (!(await lesson.resume())) say("The server no longer has what was taught here; it starts anew.");
  await trials.resume();
}

/** Show a task that was uploaded, in the tab of its kind. */
async function opened(task) {
  const { lesson, trials } = boards[task.kind];
  select(task.kind);
  trials.clear();
  await lesson.open(task.id);
}

function select(kind) {
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const isOn = tab.id === `tab-${kind}`;
    tab.setAttribute("aria-selected", String(isOn));
    tab.tabIndex = isOn ? 0 : -1;
    document.getElementById(tab.getAttribute("aria-controls")).hidden = !isOn;
  }
  remember("tab", kind);
}

function selected() {
  const tab = document.querySelector("[role=tab][aria-selected=true]");
  return boards[tab.id.replace("tab-", "")];
}

function addEventListeners() {
  const tabs = [...document.querySelectorAll("[role=tab]")];
  for (const tab of tabs) {
    tab.addEventListener("click", () => select(tab.id.replace("tab-", "")));
    tab.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      const other = tabs[(tabs.indexOf(tab) + 1) % tabs.length];
      other.click();
      other.focus();
    });
  }
  document.addEventListener("keydown", (event) => {
    const isText = event.target.matches("input, textarea");
    if (event.key.toLowerCase() === "z" && (event.ctrlKey || event.metaKey) && !event.shiftKey && !isText) {
      event.preventDefault();
      selected()?.board.acts.undo();
    }
  });
  document.addEventListener("paste", pasted);
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible") for (const { lesson } of Object.values(boards)) attempt(() => lesson.refresh());
  });
  window.addEventListener("dragover", (event) => event.preventDefault()); // or the browser would leave the page
  window.addEventListener("drop", dropped);
}

/** Folders that are dropped beside the classes become classes, by their names. */
async function dropped(event) {
  event.preventDefault();
  if (!event.dataTransfer.types.includes("Files")) return;
  const at = selected();
  const found = await droppedFiles(event.dataTransfer);
  const folders = Map.groupBy(found, ({ folder }) => folder);
  if (at?.lesson.kind !== "images" || folders.has("")) {
    say("Drop pictures onto a class, or onto “Try it”; folders become classes.");
    return;
  }
  for (const group of at.lesson.groups.filter((one) => !at.lesson.examplesOf(one).length)) {
    await attempt(() => at.lesson.removeGroup(group)); // the empty ones that the page starts with
  }
  for (const [folder, files] of folders) {
    at.board.acts.add(at.lesson.addGroup(folder), files.map(({ file }) => ({ file })));
  }
}

/** Pasted pictures go to the class that has the focus or is pointed at, else they are tried. */
function pasted(event) {
  const at = selected();
  const files = [...event.clipboardData.files];
  if (!files.length || at?.lesson.kind === "texts") return;
  event.preventDefault();
  if (!at) {
    reader?.acts.tryFiles(files);
    return;
  }
  const card = document.activeElement.closest(".card") ?? document.querySelector(".card:hover");
  if (card) at.board.acts.add(card.group, files.map((file) => ({ file })));
  else at.board.acts.tryFiles(files);
}

start();
