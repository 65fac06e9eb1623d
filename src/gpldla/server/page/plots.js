// Two small plots of leave-one-out answers, as SVG; what they show is said in words, too.

import { svg } from "./dom.js";

const CELL = 34; // units of the drawing
const LABEL = 92; // on the left
const ABOVE = 70; // turned labels
const BESIDE = 26; // where the last of them ends
const SIZE = 220;
const LETTERS = 13; // of a label

/** Draw how often examples of each class (row) were taken for each class (column). */
export function confusionPlot({ labels, counts }) {
  const side = CELL * labels.length;
  const plot = svg("svg", {
    class: "plot confusion",
    viewBox: `0 0 ${LABEL + side + BESIDE} ${ABOVE + side + 2}`,
    role: "img",
    "aria-label": confusionInWords(labels, counts),
  });
  plot.style.maxWidth = `${1.2 * (LABEL + side + BESIDE)}px`;
  labels.forEach((label, at) => {
    const middle = CELL * (at + 0.5);
    plot.append(
      svg("text", { x: LABEL - 8, y: ABOVE + middle, "text-anchor": "end", "dominant-baseline": "central" }, short(label)),
      svg("text", { x: 0, y: 0, transform: `translate(${LABEL + middle} ${ABOVE - 8}) rotate(-50)`, "dominant-baseline": "central" }, short(label)),
    );
  });
  counts.forEach((row, i) => {
    const sum = row.reduce((total, one) => total + one, 0);
    row.forEach((number, j) => plot.append(cell(i, j, number, sum && number / sum)));
  });
  return plot;
}

function cell(i, j, number, share) {
  const [x, y] = [LABEL + CELL * j, ABOVE + CELL * i];
  const kind = i === j ? "right" : "wrong";
  const box = svg("rect", { class: "ground", x: x + 1, y: y + 1, width: CELL - 2, height: CELL - 2, rx: 5 });
  const tint = svg("rect", { class: kind, x: x + 1, y: y + 1, width: CELL - 2, height: CELL - 2, rx: 5 });
  tint.style.opacity = share ? 0.18 + 0.55 * share : 0;
  const told = svg("text", { class: "number", x: x + CELL / 2, y: y + CELL / 2, "text-anchor": "middle", "dominant-baseline": "central" });
  told.textContent = number || "";
  return svg("g", {}, box, tint, told);
}

function confusionInWords(labels, counts) {
  const wrong = [];
  counts.forEach((row, i) => row.forEach((number, j) => i !== j && number && wrong.push(`${number} of ${labels[i]} taken for ${labels[j]}`)));
  return wrong.length ? `Confusions: ${wrong.join("; ")}.` : "No example was taken for another class.";
}

/** Draw how often answers were right (up) against how sure they were (right); as large as there are many. */
export function reliabilityPlot(bins) {
  const [left, top, inner] = [40, 14, SIZE - 60];
  const x = (share) => left + inner * share;
  const y = (share) => top + inner * (1 - share);
  const plot = svg("svg", { class: "plot reliability", viewBox: `0 0 ${SIZE} ${SIZE}`, role: "img", "aria-label": reliabilityInWords(bins) });
  plot.append(svg("rect", { class: "ground", x: left, y: top, width: inner, height: inner, rx: 6 }));
  for (const share of [0, 0.5, 1]) {
    const told = `${100 * share}`;
    plot.append(
      svg("text", { x: left - 6, y: y(share), "text-anchor": "end", "dominant-baseline": "central" }, told),
      svg("text", { x: x(share), y: top + inner + 13, "text-anchor": "middle" }, told),
    );
  }
  const middle = top + inner / 2;
  plot.append(
    svg("line", { class: "ideal", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }),
    svg("text", { x: left + inner / 2, y: top + inner + 30, "text-anchor": "middle" }, "how sure, %"),
    svg("text", { transform: `translate(11 ${middle}) rotate(-90)`, "text-anchor": "middle" }, "how often right, %"),
  );
  const most = Math.max(...bins.map((bin) => bin.count));
  for (const bin of bins) {
    const radius = 3.5 + 7 * Math.sqrt(bin.count / most);
    plot.append(svg("circle", { class: "bin", cx: x(bin.confidence), cy: y(bin.accuracy), r: radius }));
  }
  return plot;
}

function reliabilityInWords(bins) {
  const told = bins.map((bin) => `${Math.round(100 * bin.confidence)} % sure: ${Math.round(100 * bin.accuracy)} % right of ${bin.count}`);
  return `Reliability. ${told.join("; ")}.`;
}

function short(label) {
  return label.length > LETTERS ? `${label.slice(0, LETTERS - 1)}…` : label;
}
