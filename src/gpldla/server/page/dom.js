// Small helpers over the DOM: make elements, keep lists in step with data, draw icons.

const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
  add: "M12 5v14M5 12h14",
  camera: "M4 8h3l2-3h6l2 3h3v11H4zM12 10a3.5 3.5 0 1 1 0 7 3.5 3.5 0 0 1 0-7",
  close: "M6 6l12 12M18 6 6 18",
  download: "M12 4v11m-5-4 5 5 5-5M5 20h14",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  move: "M4 12h15m-6-6 6 6-6 6",
  picture: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15 9h.01",
  remove: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  undo: "M9 6 4 11l5 5M4 11h10a5 5 0 0 1 0 10h-3",
  upload: "M12 16V5M7 9l5-5 5 5M5 20h14",
  check: "M5 13l4 4L19 7",
  edit: "M4 20l1-4L16 5l3 3L8 19zM13.5 7.5l3 3",
  message: "M4 5h16v11H10l-5 4v-4H4zM8 9h8M8 12h5",
  doubt: "M9 9a3 3 0 1 1 4.5 2.6c-1 .6-1.5 1.2-1.5 2.4M12 18h.01",
  bird: "M16 7h.01M3.4 18H12a8 8 0 0 0 8-8V7a4 4 0 0 0-7.3-2.3L2 20M20 7l2 .5-2 .5M10 18v3M14 17.8V21",
  hint: "M9 18h6M10 21h4M12 3a6 6 0 0 0-3.6 10.8c.4.3.6.8.6 1.2h6c0-.4.2-.9.6-1.2A6 6 0 0 0 12 3",
  live: "M12 9a3 3 0 1 1 0 6 3 3 0 0 1 0-6M5 5a10 10 0 0 0 0 14M19 5a10 10 0 0 1 0 14",
};

/** Whether pictures are chosen with a finger, and can hardly be dropped or pasted. */
export const isTouch = matchMedia("(hover: none)").matches;

/** Make an element: properties are set as such, `on…` listen, names with "-" and `role` are attributes. */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "role" || name.includes("-")) made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Make an SVG element; all properties are attributes. */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Draw an icon; readers are told by the text beside it. */
export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}

/** Make a button with an icon and a text. */
export function button(text, iconName, onclick, properties = {}) {
  const parts = [iconName ? icon(iconName) : null, el("span", {}, text)];
  return el("button", { type: "button", onclick, ...properties }, ...parts);
}

/**
 * Keep the children of an element in step with a list, each by its key, so that focus and animations survive.
 * `make(item)` returns a new child; `update(child, item)` is called for old and new ones.
 */
export function keep(parent, items, keyOf, make, update = () => {}) {
  const known = parent.kept ?? (parent.kept = new Map());
  const wanted = new Map(items.map((item) => [keyOf(item), item]));
  for (const [key, child] of known) {
    if (!wanted.has(key)) {
      child.remove();
      known.delete(key);
    }
  }
  let place = parent.firstElementChild;
  for (const [key, item] of wanted) {
    let child = known.get(key);
    if (!child) known.set(key, (child = make(item)));
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    update(child, item);
  }
}

/** Return a number of things in words, as "1 picture" or "3 pictures". */
export function count(number, thing) {
  const many = thing.endsWith("s") ? `${thing}es` : `${thing}s`;
  return `${number} ${number === 1 ? thing : many}`;
}

/** Return a probability in percent; none is a certainty. */
export function percent(share) {
  if (share > 0.99) return "> 99 %";
  if (share < 0.01) return "< 1 %";
  return `${Math.round(100 * share)} %`;
}
