// The dialog with the camera: pictures for a class, or one to try.

import { button, count, el } from "./dom.js";
import { say } from "./notices.js";

const INSECURE = "Browsers lend the camera only to pages on this machine (http://localhost) or with https://.";
const DENIED = "The browser has not lent its camera; allow it beside the address of this page, and try again.";
const MISSING = "No camera was found. Is it plugged in, and not in use elsewhere?";

/** Show the camera until it is closed; `take(file)` is called for each picture. One is enough if isSingle. */
export async function photograph(name, take, { isSingle = false } = {}) {
  const stream = await borrow();
  if (!stream) return;
  const video = el("video", { autoplay: true, muted: true, playsInline: true, "aria-label": "What the camera sees" });
  video.srcObject = stream;
  const told = el("p", { className: "hint", role: "status" }, isSingle ? "One picture is enough." : "Turn it a little between pictures.");
  let taken = 0;
  const shoot = async () => {
    const file = await still(video, `camera-${(taken += 1)}.jpg`);
    if (!file) return;
    video.classList.remove("flash");
    void video.offsetWidth; // so that the flash starts again
    video.classList.add("flash");
    told.textContent = `${count(taken, "picture")} taken`;
    take(file);
    if (isSingle) dialog.close();
  };
  const close = () => dialog.close();
  const trigger = button("Take a picture", "camera", shoot, { className: "primary", disabled: true });
  video.addEventListener("loadeddata", () => {
    trigger.disabled = false;
    trigger.focus();
  });
  const dialog = el(
    "dialog",
    { className: "camera", "aria-label": `Photograph: ${name}` },
    el("h2", {}, name),
    video,
    told,
    el(
      "div",
      { className: "row end" },
      button("Done", null, close),
      trigger,
    ),
  );
  dialog.addEventListener("close", () => {
    for (const track of stream.getTracks()) track.stop();
    dialog.remove();
  });
  document.body.append(dialog);
  dialog.showModal();
}

async function borrow() {
  if (!navigator.mediaDevices?.getUserMedia) {
    say(INSECURE, { isError: true });
    return null;
  }
  try {
    const video = { facingMode: "environment", width: { ideal: 1280 }, height: { ideal: 720 } };
    return await navigator.mediaDevices.getUserMedia({ video });
  } catch (error) {
    say(error.name === "NotAllowedError" ? DENIED : MISSING, { isError: true });
    return null;
  }
}

/** Return what the video shows as a picture. */
async function still(video, name) {
  const canvas = el("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  return blob && new File([blob], name, { type: "image/jpeg" });
}
