// A menu beside the button that opens it, for the keyboard, screen readers and fingers alike.

import { el, icon } from "./dom.js";

let open = null;

/** Show a menu; items: [{text, icon, act, isDanger, colour}], or {heading}. Focus returns to the button. */
export function showMenu(anchor, label, items) {
  hideMenu();
  const menu = el("div", { role: "menu", "aria-label": label, className: "menu", popover: "auto" });
  for (const item of items) menu.append(item.heading ? heading(item.heading) : entry(item, anchor));
  menu.addEventListener("keydown", (event) => walk(menu, event));
  menu.addEventListener("toggle", (event) => {
    if (event.newState === "closed" && open === menu) hideMenu();
  });
  (anchor.closest("dialog, main")).append(menu);
  open = menu;
  menu.showPopover();
  anchor.setAttribute("aria-expanded", "true");
  menu.anchor = anchor;
  place(menu, anchor.getBoundingClientRect());
  menu.querySelector("[role=menuitem]").focus();
}

/** Close the menu that is open, if one is. */
export function hideMenu() {
  if (!open) return;
  const menu = open;
  open = null;
  const hadFocus = menu.contains(document.activeElement) || document.activeElement === document.body;
  menu.anchor?.setAttribute("aria-expanded", "false");
  menu.remove();
  if (hadFocus) menu.anchor?.focus();
}

function heading(text) {
  return el("div", { role: "presentation", className: "menu-heading" }, text);
}

function entry(item, anchor) {
  const mark = item.colour === undefined ? icon(item.icon) : el("span", { className: `dot colour-${item.colour}` });
  const act = () => {
    anchor.focus();
    hideMenu();
    item.act();
  };
  const className = item.isDanger ? "menu-item danger" : "menu-item";
  return el(
    "button",
    { type: "button", role: "menuitem", tabIndex: -1, className, onclick: act },
    mark,
    el("span", {}, item.text),
  );
}

function walk(menu, event) {
  const entries = [...menu.querySelectorAll("[role=menuitem]")];
  const at = entries.indexOf(document.activeElement);
  const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: entries.length - 1 }[event.key];
  if (next !== undefined) {
    event.preventDefault();
    entries[(next + entries.length) % entries.length].focus();
  } else if (event.key === "Escape" || event.key === "Tab") {
    event.preventDefault();
    event.stopPropagation();
    hideMenu();
  } else if (event.key.length === 1) {
    const rest = [...entries.slice(at + 1), ...entries.slice(0, at + 1)];
    rest.find((one) => one.textContent.toLowerCase().startsWith(event.key.toLowerCase()))?.focus();
  }
}

function place(menu, box) {
  const { offsetWidth: width, offsetHeight: height } = menu;
  const left = Math.min(box.left, window.innerWidth - width - 8);
  const below = box.bottom + 4 + height <= window.innerHeight;
  menu.style.left = `${Math.max(8, left)}px`;
  menu.style.top = `${below ? box.bottom + 4 : Math.max(8, box.top - height - 4)}px`;
}
