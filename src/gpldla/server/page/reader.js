// The page of a server that answers for one classifier: nothing can be taught, everything can be tried.

import { photograph } from "./camera.js";
import { count, el } from "./dom.js";
import { COLOURS } from "./lesson.js";
import { attempt } from "./notices.js";
import { makeTrialPanel } from "./trial_panel.js";
import { Trials } from "./trials.js";

const CLASSES_NAMED = 12;

/** Make the page; server: what GET /v1/server says. */
export async function makeReader(server, api) {
  const [kind] = server.kinds;
  const groups = server.classes.map((name, at) => ({ key: at, name, colour: at % COLOURS }));
  const trials = new Trials(kind, api, server.limits, () => "/predict", () => "");
  const acts = {
    tryFiles: (files) => attempt(() => trials.add(files)),
    tryText: (text) => attempt(() => trials.write(text)),
    photograph: () => photograph("Something to try", (file) => acts.tryFiles([file]), { isSingle: true }),
    showPicture: async (image, path) => (image.src = (await attempt(() => api.picture(path))) ?? ""),
    whatIsMissing: () => "There is no answer yet.",
  };
  const panel = makeTrialPanel(kind, trials, { groups }, acts);
  trials.addEventListener("change", () => panel.show());
  const named = server.classes.slice(0, CLASSES_NAMED).join(", ");
  const more = server.classes.length > CLASSES_NAMED ? " and more" : "";
  const intro = el("p", { className: "summary" }, `It tells ${count(server.classes.length, "class")} apart: ${named}${more}.`);
  const reader = el("div", { className: "board reader" }, el("h2", { className: "title" }, "Ask a classifier"), intro, panel);
  reader.acts = acts;
  reader.resume = () => trials.resume();
  panel.show();
  return reader;
}
