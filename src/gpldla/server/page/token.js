// The dialog that asks for the server's token.

import { el } from "./dom.js";

/** Ask until something is given; wasWrong: whether another one was refused. */
export function askToken(wasWrong) {
  const field = el("input", { type: "password", autocomplete: "current-password", required: true, id: "token" });
  const told = wasWrong
    ? "That is not the server's token. Please try again."
    : "This server lets in those who know its token. Whoever started it can tell you.";
  const form = el(
    "form",
    { method: "dialog" },
    el("h2", { id: "token-title" }, "Token"),
    el("p", { id: "token-told", role: wasWrong ? "alert" : "note" }, told),
    el("label", { htmlFor: "token" }, "The server's token"),
    field,
    el("div", { className: "row end" }, el("button", { type: "submit", className: "primary" }, "Enter")),
  );
  const dialog = el("dialog", { "aria-labelledby": "token-title", "aria-describedby": "token-told" }, form);
  dialog.addEventListener("cancel", (event) => event.preventDefault()); // nothing works without
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!field.value.trim()) return;
      dialog.close();
      dialog.remove();
      resolve(field.value);
    });
  });
}
