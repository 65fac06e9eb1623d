// What is taught in one tab: the task on the server, its classes and examples, and what may be undone.
//
// The server knows classes by their examples; empty ones, their order and their colours are the page's own.
// Changes run one after another, each with the names that hold when its turn comes. Listeners of "change" redraw.

import { Failure } from "./api.js";
import { allLighter, batchesOf, bodyOf } from "./items.js";
import { remember, remembered } from "./memory.js";
import { UNDO } from "./undo.js";

export const COLOURS = 8;
const UNDO_DEPTH = 100;
const OF_ITEMS = [400, 413, 415, 422]; // answers that may concern one item of several
const UNSURE = "unsure"; // as the server refuses it, and before there are examples it is not asked
const NAME = { images: "My pictures", texts: "My texts" };

let keys = 0;

export class Lesson extends EventTarget {
  task = null;
  groups = []; // the classes: {key, name, colour}
  examples = [];
  pending = []; // items on their way: {key, group, url or text}
  undos = [];
  #queue = Promise.resolve();

  constructor(kind, api, limits) {
    super();
    Object.assign(this, { kind, api, limits });
  }

  /** Whether there are answers: two classes have examples. */
  get isReady() {
    return this.task !== null && this.task.classes.length >= 2;
  }

  get isEmpty() {
    return this.examples.length === 0 && this.pending.length === 0;
  }

  get path() {
    return `/v1/tasks/${this.task.id}`;
  }

  /** Return the path of an example, with what is to be done with it. */
  pathOf(id, action = "") {
    return `${this.path}/examples/${id}${action}`;
  }

  /** Return the class of this name, or undefined. */
  group(name) {
    return this.groups.find((group) => group.name === name);
  }

  /** Return the examples of a class. */
  examplesOf(group) {
    return this.examples.filter((example) => example.label === group.name);
  }

  /** Take up what was taught before a reload; returns false if the server has lost it. */
  async resume() {
    const kept = remembered(this.kind);
    for (const { name, colour } of kept?.groups ?? []) this.#insert(name, colour);
    let found = true;
    if (kept?.task) {
      try {
        await this.#load(kept.task);
        this.undos = kept.undos ?? [];
      } catch (failure) {
        if (failure.status !== 404) throw failure;
        found = false;
      }
    }
    if (!this.groups.length) this.#startWith(["Class 1", "Class 2"]);
    this.changed();
    return found;
  }

  /** Begin anew; the task stays on the server until its time is over, so that this can be undone. */
  restart(names = ["Class 1", "Class 2"]) {
    const before = this.task && { what: "restarted", task: this.task.id, groups: this.groups.map(({ name }) => name) };
    Object.assign(this, { task: null, groups: [], examples: [], undos: before ? [before] : [] });
    this.#startWith(names);
    this.changed();
  }

  /** Work with another task of the server. */
  async open(id, names = []) {
    const before = this.task && { what: "restarted", task: this.task.id, groups: this.groups.map(({ name }) => name) };
    Object.assign(this, { groups: [], undos: before ? [before] : [] });
    for (const name of names) this.#insert(name);
    await this.#load(id);
    this.changed();
  }

  /** Take up what others have changed since: another tab, or a client of the API. */
  refresh() {
    return this.inTurn(async () => {
      if (!this.task) return;
      const task = await this.api.json("GET", this.path);
      if (task.revision !== this.task.revision) await this.#load(task.id);
    });
  }

  /** Make a task of a classifier's file. */
  upload(file) {
    return this.inTurn(async () => {
      const form = new FormData();
      form.append("file", file, file.name);
      return this.api.json("POST", "/v1/tasks/upload", form);
    });
  }

  /** Give the task a name. */
  rename(name) {
    return this.inTurn(async () => {
      await this.#needTask(name);
      if (this.task.name !== name) this.task = await this.api.json("PATCH", this.path, { name });
    });
  }

  /** Make an empty class; returns it. */
  addGroup(name = this.#freeName()) {
    const known = this.group(name);
    if (known) return known;
    const made = this.#insert(name);
    this.noted({ what: "groupAdded", name });
    this.changed();
    return made;
  }

  /** Add items [{file} or {text}] to a class; returns the failures, each with its item. */
  add(group, items) {
    const waiting = items.map((item) => ({
      key: `pending ${(keys += 1)}`,
      group: group.key,
      text: item.text ?? null,
      url: item.file ? URL.createObjectURL(item.file) : null,
    }));
    this.pending.push(...waiting);
    this.changed();
    return this.inTurn(async () => {
      const failures = [];
      const ids = [];
      try {
        await this.#needTask();
        const isText = items[0].file === undefined;
        const sent = isText ? items : (await allLighter(items.map(({ file }) => file))).map((file) => ({ file }));
        for (const batch of batchesOf(sent, this.limits)) ids.push(...(await this.#send(group, batch, failures)));
      } finally {
        this.pending = this.pending.filter((one) => !waiting.includes(one));
        for (const { url } of waiting) if (url) URL.revokeObjectURL(url);
        if (ids.length) this.noted({ what: "added", ids, label: group.name });
      }
      return failures;
    });
  }

  /** Give an example another class. */
  relabel(id, group) {
    return this.inTurn(async () => {
      const example = this.examples.find((one) => one.id === id);
      if (!example || example.label === group.name) return;
      await this.relabelled(id, group.name);
      this.noted({ what: "relabelled", ids: [id], from: example.label, to: group.name });
    });
  }

  /** Remove an example. */
  remove(id) {
    return this.inTurn(async () => {
      const example = this.examples.find((one) => one.id === id);
      if (!example) return;
      await this.removed(id);
      this.noted({ what: "removed", ids: [id], label: example.label });
    });
  }

  /** Give a class another name; that of another class merges both. */
  renameGroup(group, wanted) {
    return this.inTurn(async () => {
      const to = wanted.normalize("NFC").trim();
      const from = group.name;
      if (!to || to === from) return;
      if (to === UNSURE) throw new Failure(422, `“${UNSURE}” marks unsure answers; give the class another name.`);
      const other = this.group(to);
      let ids = [];
      if (this.examplesOf(group).length) {
        ids = await this.renamed(from, to);
      }
      const note = { what: other ? "merged" : "renamed", ids, from, to, at: this.groups.indexOf(group) };
      if (other) this.groups = this.groups.filter((one) => one !== group);
      else group.name = to;
      this.noted(note);
    });
  }

  /** Remove a class and its examples. */
  removeGroup(group) {
    return this.inTurn(async () => {
      const at = this.groups.indexOf(group);
      if (at < 0) return;
      let ids = [];
      if (this.examplesOf(group).length) {
        const answer = await this.api.json("DELETE", this.#pathOfGroup(group.name));
        ids = answer.examples;
        this.examples = this.examples.filter((one) => one.label !== group.name);
        this.task = answer.task;
      }
      this.groups.splice(at, 1);
      this.noted({ what: "groupRemoved", ids, label: group.name, colour: group.colour, at });
    });
  }

  /** Take back the last change; returns what it was. */
  undo() {
    return this.inTurn(async () => {
      const note = this.undos.pop();
      if (!note) return null;
      try {
        await UNDO[note.what](this, note);
      } catch (failure) {
        if (!(failure instanceof Failure) || failure.status !== 404) this.undos.push(note);
        throw failure;
      }
      return note;
    });
  }

  // What the ways back in undo.js are made of.

  async relabelled(id, label) {
    const { example, task } = await this.api.json("PATCH", this.pathOf(id), { label });
    this.examples = this.examples.map((one) => (one.id === id ? example : one));
    this.task = task;
  }

  async removed(id) {
    const { task } = await this.api.json("DELETE", this.pathOf(id));
    this.examples = this.examples.filter((one) => one.id !== id);
    this.task = task;
  }

  async restored(id) {
    const { example, task } = await this.api.json("POST", this.pathOf(id, "/restore"));
    this.examples.push(example);
    this.task = task;
  }

  async renamed(from, to) {
    const { examples, task } = await this.api.json("PATCH", this.#pathOfGroup(from), { name: to });
    const changed = new Set(examples);
    this.examples = this.examples.map((one) => (changed.has(one.id) ? { ...one, label: to } : one));
    this.task = task;
    return examples;
  }

  insert(name, colour, at) {
    if (!this.group(name)) this.#insert(name, colour, at);
  }

  /** Remember a change, so that it can be undone. */
  noted(note) {
    this.undos = [...this.undos, note].slice(-UNDO_DEPTH);
  }

  /** Run a change after those that are under way. */
  inTurn(change) {
    const result = this.#queue.then(change).finally(() => this.changed());
    this.#queue = result.catch(() => {});
    return result;
  }

  /** Say that something has changed. */
  changed() {
    for (const { name } of this.task?.classes ?? []) this.insert(name);
    const groups = this.groups.map(({ name, colour }) => ({ name, colour }));
    remember(this.kind, { task: this.task?.id ?? null, groups, undos: this.undos });
    this.dispatchEvent(new Event("change"));
  }

  async #load(id) {
    this.task = await this.api.json("GET", `/v1/tasks/${id}`);
    this.examples = (await this.api.json("GET", `${this.path}/examples`)).examples;
  }

  async #needTask(name = NAME[this.kind]) {
    this.task ??= await this.api.json("POST", "/v1/tasks", { kind: this.kind, name });
  }

  /** Send items of one request; where one is refused, all are sent one by one, so that the others arrive. */
  async #send(group, batch, failures) {
    try {
      const { examples, task } = await this.api.json("POST", `${this.path}/examples`, bodyOf(batch, group.name));
      this.examples.push(...examples);
      this.task = task;
      if (examples[0].label !== group.name) group.name = examples[0].label; // as the server writes it
      this.changed();
      return examples.map((one) => one.id);
    } catch (failure) {
      if (!OF_ITEMS.includes(failure.status)) throw failure;
      if (batch.length === 1) {
        failures.push({ item: batch[0], message: failure.message });
        return [];
      }
      const ids = [];
      for (const item of batch) ids.push(...(await this.#send(group, [item], failures)));
      return ids;
    }
  }

  #startWith(names) {
    for (const name of names) this.#insert(name);
  }

  #insert(name, colour = this.#freeColour(), at = this.groups.length) {
    const made = { key: (keys += 1), name, colour };
    this.groups.splice(at, 0, made);
    return made;
  }

  /** Return the colour that fewest classes have. */
  #freeColour() {
    const used = new Array(COLOURS).fill(0);
    for (const { colour } of this.groups) used[colour] += 1;
    return used.indexOf(Math.min(...used));
  }

  #freeName() {
    for (let number = this.groups.length + 1; ; number += 1) {
      if (!this.group(`Class ${number}`)) return `Class ${number}`;
    }
  }

  #pathOfGroup(name) {
    return `${this.path}/classes/${encodeURIComponent(name)}`;
  }
}
