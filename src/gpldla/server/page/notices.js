// What the page says: short notices that screen readers speak, with a way back where there is one.

import { button, el } from "./dom.js";

const SECONDS = { notice: 6, error: 15 };

let box = null;

/** Make the region of the notices; it must be there before the first of them. */
export function noticeRegion() {
  box = el("div", { className: "notices", role: "status", "aria-live": "polite" });
  return box;
}

/** Say something; action: {text, act}, a button. Errors stay longer, and are spoken at once. */
export function say(message, { isError = false, action = null } = {}) {
  const notice = el("div", { className: isError ? "notice error" : "notice" }, el("span", {}, message));
  if (isError) notice.setAttribute("role", "alert");
  const close = () => notice.remove();
  if (action) {
    for (const old of box.querySelectorAll(".with-action")) old.remove(); // theirs is past
    notice.classList.add("with-action");
    notice.append(
      button(action.text, null, () => {
        close();
        action.act();
      }),
    );
  }
  notice.append(button("Close", "close", close, { className: "only-icon quiet" }));
  let timer = setTimeout(close, 1000 * SECONDS[isError ? "error" : "notice"]);
  notice.addEventListener("pointerenter", () => clearTimeout(timer));
  notice.addEventListener("focusin", () => clearTimeout(timer));
  notice.addEventListener("pointerleave", () => (timer = setTimeout(close, 3000)));
  while (box.children.length > 2) box.firstElementChild.remove();
  box.append(notice);
}

/** Run something; what goes wrong is said, and nothing is thrown. */
export async function attempt(act) {
  try {
    return await act();
  } catch (failure) {
    if (failure.status === undefined) console.error(failure);
    say(failure.status === undefined ? `Something went wrong: ${failure.message}` : failure.message, { isError: true });
    return undefined;
  }
}
