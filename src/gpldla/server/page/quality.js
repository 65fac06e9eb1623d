// How good the classifier is: each example is left out and asked about, as if it were new.

import { button, count, el, icon, percent } from "./dom.js";
import { confusionPlot, reliabilityPlot } from "./plots.js";

const PAUSE = 250; // ms: several changes, one question
const MOST_CLASSES = 12; // of a confusion plot that can be read
const PAIRS = 6;
const FEW = 30; // answers, below which dots say little
const THING = { images: "picture", texts: "text" };

/** Make the section; acts: see board.js. Call `section.show()` after changes. */
export function makeQuality(lesson, acts) {
  const heading = el("h2", { id: `${lesson.kind}-quality` }, "How good is it?");
  const body = el("div", { className: "quality-body", "aria-live": "polite" });
  const section = el("section", { className: "panel quality", "aria-labelledby": heading.id }, heading, body);
  let asked = "";
  let timer = 0;
  section.show = () => {
    section.hidden = lesson.isEmpty;
    const version = `${lesson.task?.id} ${lesson.task?.revision}`;
    if (version === asked) return;
    asked = version;
    clearTimeout(timer);
    if (!lesson.isReady) {
      body.replaceChildren(el("p", { className: "hint" }, "With two classes of two or more examples, you see here how often it is right."));
      return;
    }
    timer = setTimeout(() => ask(lesson, acts, body, () => asked === version), PAUSE);
  };
  return section;
}

async function ask(lesson, acts, body, isCurrent) {
  let quality;
  try {
    quality = await lesson.api.json("GET", `${lesson.path}/quality`);
  } catch (failure) {
    if (isCurrent()) body.replaceChildren(el("p", { className: "hint" }, failure.message));
    return;
  }
  if (!isCurrent()) return;
  const { labels } = quality.confusion;
  const isSmall = labels.length <= MOST_CLASSES;
  const confusion = isSmall ? confusionPlot(quality.confusion) : pairs(quality.confusion);
  const key = isSmall ? "Rows: what it is. Columns: the answer." : "The most frequent ones.";
  body.replaceChildren(
    numbers(quality, lesson),
    figure("What is taken for what", key, confusion),
    figure("Does it keep its word?", told(quality), reliabilityPlot(quality.reliability)),
    ...suspects(quality, lesson, acts),
  );
}

function numbers(quality, lesson) {
  const right = Math.round(quality.accuracy * quality.tested);
  const words = `right, when each ${THING[lesson.kind]} is left out and then asked about.`;
  const parts = [number(`${right} of ${quality.tested}`, words)];
  if (quality.expected_accuracy !== null) {
    const [low, high] = quality.interval.map((share) => Math.round(100 * share));
    const often = Math.round(10 * quality.interval_probability);
    const range = `expected for new ones of the same kind; ${often} times in 10 it is between ${low} and ${high} %.`;
    parts.push(number(percent(quality.expected_accuracy), range));
  }
  return el("div", { className: "numbers" }, ...parts);
}

function number(big, words) {
  return el("div", {}, el("p", { className: "big" }, big), el("p", {}, words));
}

function told(quality) {
  const few = quality.tested < FEW ? ` With ${quality.tested} answers the dots still scatter.` : "";
  return `Dots on the line: right as often as it says.${few}`;
}

function figure(title, caption, plot) {
  return el("figure", {}, el("h3", {}, title), plot, el("figcaption", { className: "hint" }, caption));
}

function pairs({ labels, counts }) {
  const all = counts.flatMap((row, i) => row.map((number, j) => ({ number, i, j }))).filter(({ number, i, j }) => i !== j && number);
  const worst = all.sort((a, b) => b.number - a.number).slice(0, PAIRS);
  const lines = worst.map(({ number, i, j }) => el("li", {}, `${labels[i]} taken for ${labels[j]}: ${count(number, "time")}`));
  return el("ul", { className: "pairs" }, ...(lines.length ? lines : [el("li", {}, "Nothing was taken for another class.")]));
}

function suspects(quality, lesson, acts) {
  if (!quality.suspects.length) return [];
  const items = quality.suspects.map((one) => {
    const face = el("img", { alt: "", hidden: !one.thumbnail });
    if (one.thumbnail) acts.showPicture(face, one.thumbnail);
    const text = one.text ?? one.name;
    const move = () => acts.relabel(one.id, lesson.group(one.suggested) ?? acts.addGroup(one.suggested));
    return el(
      "li",
      {},
      face,
      el("p", {}, `“${text}” is in ${one.label}, but looks like ${one.suggested}.`),
      button(`Move to ${one.suggested}`, "move", move),
    );
  });
  const title = el("h3", {}, icon("doubt"), " In the wrong class?");
  return [el("div", { className: "suspects" }, title, el("ul", {}, ...items))];
}
