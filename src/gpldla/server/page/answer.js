// An answer: what it is, how sure that is, why, and what would help.

import { button, el, icon, keep, percent } from "./dom.js";

const SHOWN = 6; // classes; the others are summed up
const NONE = "none";
const WORTH_SAYING = 0.2; // probability of being of no class, as all the others hold only if it is of one

/** Make the view of an answer; acts: see board.js. Call `show(item)` with an item of trials.js, or null. */
export function makeAnswer(acts) {
  const verdict = el("div", { className: "verdict", role: "status", "aria-atomic": "true" });
  const bars = el("ul", { className: "bars", "aria-label": "Probabilities" });
  const near = el("ul", { className: "nearest" });
  const why = el("div", { className: "why" }, el("h3", {}, "Most like it"), near);
  const known = el("div", { className: "in-chips" });
  const other = button("Another class", "add", () => acts.teach(element.item, null), { className: "chip" });
  const chips = el("div", { className: "chips", role: "group", "aria-label": "Teach the right class" }, known, other);
  const teach = el("div", { className: "correct" }, el("h3", {}, "What is it really?"), chips);
  const element = el("div", { className: "answer" }, verdict, bars, why, teach);
  element.show = (item, groups) => {
    const given = item?.prediction ?? null;
    element.hidden = given === null;
    if (given === null) return;
    showVerdict(verdict, given, colourIn(groups));
    showBars(bars, given, colourIn(groups));
    why.hidden = given.nearest.length === 0;
    keep(near, given.nearest, (one) => one.id, (one) => neighbour(one, acts), (child, one) => label(child, one, groups));
    teach.hidden = acts.teach === undefined;
    element.item = item;
    keep(
      known,
      groups,
      (group) => group.key,
      () => button("", null, () => {}, { className: "chip" }),
      (chip, group) => {
        chip.className = `chip colour-${group.colour}`;
        chip.replaceChildren(el("span", { className: "dot" }), el("span", {}, group.name));
        chip.onclick = () => acts.teach(item, group);
      },
    );
  };
  return element;
}

function colourIn(groups) {
  return (name) => groups.find((group) => group.name === name)?.colour ?? 0;
}

function showVerdict(verdict, given, colour) {
  const best = given.probabilities[0];
  const none = given.none_of_these ?? 0;
  const isNone = none > 0.5;
  const [mark, word, className] = isNone
    ? ["doubt", "Unlike what was taught", "unsure"]
    : given.unsure
      ? ["doubt", "Not sure", "unsure"]
      : ["check", "Sure enough to act on", "sure"];
  const key = JSON.stringify([best, none, given.unsure, given.reason]);
  if (verdict.dataset.key === key) return; // or it would be spoken again
  verdict.dataset.key = key;
  verdict.replaceChildren(
    el(
      "p",
      { className: "headline" },
      el("span", { className: `dot colour-${isNone ? NONE : colour(best.label)}` }),
      el("span", { className: "label" }, isNone ? "None of these" : best.label),
      el("span", { className: "share" }, percent(isNone ? none : best.probability)),
    ),
    el("p", { className: `badge ${className}` }, icon(mark), el("span", {}, word)),
    el("p", { className: "odds" }, isNone ? `If it is one of these after all, it is rather ${best.label}.` : odds(best.probability, none)),
    el("p", { className: "reason" }, given.reason),
  );
}

/** Say what a probability means, as counts: people judge those better than percentages. */
function odds(probability, none) {
  const right = Math.min(99, Math.max(1, Math.round(100 * probability)));
  if (none < WORTH_SAYING) return `Of 100 answers as sure as this one, about ${right} are right.`;
  return `If it is one of these classes: of 100 answers as sure, about ${right} are right.`;
}

function showBars(bars, given, colour) {
  const rows = given.probabilities.slice(0, SHOWN).map((one) => ({ ...one, colour: colour(one.label), key: `c ${one.label}` }));
  const rest = given.probabilities.slice(SHOWN);
  if (rest.length) {
    const probability = rest.reduce((sum, one) => sum + one.probability, 0);
    rows.push({ key: "rest", label: `${rest.length} other classes`, probability, colour: NONE });
  }
  if (given.none_of_these !== null) {
    rows.push({ key: NONE, label: "None of these", probability: given.none_of_these, colour: NONE, isApart: true });
  }
  keep(bars, rows, (row) => row.key, makeBar, updateBar);
}

function makeBar() {
  const frame = el("span", { className: "bar-track" }, el("span", { className: "bar-fill" }));
  return el("li", {}, el("span", { className: "bar-label" }), el("span", { className: "bar-share" }), frame);
}

function updateBar(bar, row) {
  bar.className = `bar colour-${row.colour}${row.isApart ? " apart" : ""}`;
  bar.querySelector(".bar-label").textContent = row.label;
  bar.querySelector(".bar-share").textContent = percent(row.probability);
  bar.querySelector(".bar-fill").style.transform = `scaleX(${row.probability})`;
}

function neighbour(one, acts) {
  const item = el("li", {});
  if (one.thumbnail) {
    const image = el("img", { alt: "", decoding: "async" });
    acts.showPicture(image, one.thumbnail);
    item.append(image);
  } else {
    item.append(el("span", { className: "no-picture" }, one.name));
  }
  item.append(el("span", { className: "near-label" }));
  return item;
}

function label(child, one, groups) {
  const name = child.querySelector(".near-label");
  name.className = `near-label colour-${colourIn(groups)(one.label)}`;
  name.replaceChildren(el("span", { className: "dot" }), el("span", {}, one.label));
  child.title = `${one.name}: similarity ${one.similarity.toFixed(2)}`;
}
