// What is tried out: pictures or a text without a label, and the server's answers for them.

import { allLighter, batchesOf, bodyOf } from "./items.js";
import { remember, remembered, rememberedTrials, rememberTrials } from "./memory.js";

const MOST = 12; // pictures; the oldest give way
const OF_ITEMS = [400, 413, 415, 422]; // answers that concern what was sent
const RANKING_PAUSE = 400; // ms, as answers are wanted first

let keys = 0;

export class Trials extends EventTarget {
  items = []; // {key, name, file, url} or {key, name, text}, with the answer once it is there: prediction
  selected = null;
  isBusy = false;
  next = null; // the item whose label would teach most
  #rankings = 0;
  #judged = ""; // the task and revision of the answers
  #wanted = 0; // how often answers were asked for, and for how many of these they are there or under way
  #done = 0;
  #running = null;

  /**
   * `path()` returns where to ask, or null while there are no answers to be had; `version()` changes with the task.
   * `ranking()`, where given, returns where to ask which of several items to label next.
   */
  constructor(kind, api, limits, path, version, ranking = null) {
    super();
    Object.assign(this, { kind, api, limits, path, version, ranking });
  }

  /** Take up what was tried before a reload. */
  async resume() {
    if (this.kind === "texts") {
      const text = remembered("trial");
      if (text) this.items = [{ key: (keys += 1), name: text, text }];
    } else {
      for (const { name, file } of await rememberedTrials(this.kind)) this.#push(new File([file], name, { type: file.type }));
    }
    this.selected = this.items.at(-1) ?? null;
    await this.judge();
  }

  /** Try pictures. */
  async add(files) {
    const light = await allLighter(files);
    for (const file of light) this.#push(file);
    for (const old of this.items.splice(0, Math.max(0, this.items.length - MOST))) URL.revokeObjectURL(old.url);
    this.selected = this.items.at(-light.length) ?? this.items.at(-1) ?? null;
    this.#keep();
    await this.judge();
  }

  /** Try a text; an empty one clears the answer. */
  async write(text) {
    remember("trial", text);
    const trimmed = text.trim();
    this.items = trimmed ? [{ key: (keys += 1), name: trimmed, text: trimmed, prediction: this.selected?.prediction }] : [];
    this.selected = this.items[0] ?? null;
    await this.judge();
  }

  /** Show the answer for an item. */
  select(item) {
    this.selected = item;
    this.#changed();
  }

  /** Try an item no longer. */
  remove(item) {
    const at = this.items.indexOf(item);
    this.items.splice(at, 1);
    if (this.next === item) this.next = null;
    if (item.url) URL.revokeObjectURL(item.url);
    if (this.selected === item) this.selected = this.items[Math.min(at, this.items.length - 1)] ?? null;
    this.#keep();
    this.#changed();
  }

  /** Try nothing. */
  clear() {
    for (const item of [...this.items]) this.remove(item);
    if (this.kind === "texts") remember("trial", "");
  }

  /** Ask again if the task has changed since. */
  async follow() {
    if (this.#judged !== this.version()) await this.judge();
  }

  /** Ask for answers; while answers are under way, they are asked for once more afterwards. */
  async judge() {
    this.#wanted += 1;
    while (this.#done < this.#wanted) {
      this.#running ??= this.#judgeWhileWanted().finally(() => (this.#running = null));
      await this.#running;
    }
  }

  async #judgeWhileWanted() {
    while (this.#done < this.#wanted) {
      this.#done = this.#wanted;
      this.isBusy = true;
      this.#changed();
      try {
        await this.#judgeOnce();
      } finally {
        this.isBusy = false;
        this.#changed();
      }
    }
  }

  async #judgeOnce() {
    const path = this.path();
    this.#judged = this.version();
    if (path === null) {
      for (const item of this.items) item.prediction = null;
      return;
    }
    // The one that is looked at first: it should not wait for the others.
    const first = this.items.filter((item) => item === this.selected);
    const rest = batchesOf(this.items.filter((item) => item !== this.selected), this.limits);
    for (const batch of [...(first.length ? [first] : []), ...rest]) {
      await this.#ask(path, batch);
      this.#changed();
    }
    this.#rankSoon();
  }

  /** Find out which item to label next; nothing waits for it, and a newer question replaces it. */
  #rankSoon() {
    this.#rankings += 1;
    const mine = this.#rankings;
    const items = [...this.items];
    if (!this.ranking || items.length < 2 || batchesOf(items, this.limits).length > 1) return;
    setTimeout(async () => {
      if (mine !== this.#rankings || this.isBusy) return;
      try {
        const { suggestions } = await this.api.json("POST", this.ranking(), bodyOf(items));
        if (mine !== this.#rankings) return;
        this.next = items[suggestions[0].index];
        this.#changed();
      } catch {
        // The answers are there, and the next change asks again.
      }
    }, RANKING_PAUSE);
  }

  async #ask(path, batch) {
    try {
      const { predictions } = await this.api.json("POST", path, bodyOf(batch));
      batch.forEach((item, index) => (item.prediction = predictions[index]));
    } catch (failure) {
      if (failure.status === 409) {
        for (const item of batch) item.prediction = null;
      } else if (failure.status === 422 && batch.length > 1) {
        for (const item of batch) await this.#ask(path, [item]);
      } else {
        if (OF_ITEMS.includes(failure.status)) for (const item of batch) if (item.file) this.remove(item);
        throw failure;
      }
    }
  }

  #push(file) {
    this.items.push({ key: (keys += 1), name: file.name, file, url: URL.createObjectURL(file), prediction: undefined });
  }

  #keep() {
    if (this.kind === "images") rememberTrials(this.kind, this.items.map(({ name, file }) => ({ name, file })));
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}
