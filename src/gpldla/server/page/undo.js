// The way back of each change. Notes are plain data, so that changes can be undone after a reload, too.

import { count } from "./dom.js";

const THING = { images: "picture", texts: "text" };

/** What undoes a change; called with the lesson and the note. */
export const UNDO = {
  async added(lesson, { ids }) {
    for (const id of ids) await lesson.removed(id);
  },
  async removed(lesson, { ids, label }) {
    lesson.insert(label);
    for (const id of ids) await lesson.restored(id);
  },
  async relabelled(lesson, { ids, from }) {
    lesson.insert(from);
    for (const id of ids) await lesson.relabelled(id, from);
  },
  async renamed(lesson, { ids, from, to }) {
    if (ids.length) await lesson.renamed(to, from);
    const group = lesson.group(to);
    if (group) group.name = from;
  },
  async merged(lesson, { ids, from, at }) {
    lesson.insert(from, undefined, at);
    for (const id of ids) await lesson.relabelled(id, from);
  },
  async groupAdded(lesson, { name }) {
    const group = lesson.group(name);
    if (group && !lesson.examplesOf(group).length) lesson.groups = lesson.groups.filter((one) => one !== group);
  },
  async groupRemoved(lesson, { ids, label, colour, at }) {
    lesson.insert(label, colour, at);
    for (const id of ids) await lesson.restored(id);
  },
  async restarted(lesson, { task, groups }) {
    await lesson.open(task, groups);
    lesson.undos = [];
  },
};

/** Say in words what a change did. */
export function told(note, kind) {
  const things = count(note.ids?.length ?? 0, THING[kind]);
  const words = {
    added: () => `Added ${things} to ${note.label}`,
    removed: () => `Removed ${things} from ${note.label}`,
    relabelled: () => `Moved ${things} from ${note.from} to ${note.to}`,
    renamed: () => `Renamed ${note.from} to ${note.to}`,
    merged: () => `Merged ${note.from} into ${note.to}`,
    groupAdded: () => `Added the class ${note.name}`,
    groupRemoved: () => `Removed the class ${note.label}`,
    restarted: () => "Started anew",
  };
  return words[note.what]();
}
