// Puts the page together: states come in, what is chosen is shown, buttons ask the server.

import { answer, change, look, useKey } from "./api.js";
import { showArena } from "./arena.js";
import { milliseconds, size } from "./format.js";
import { Frontier } from "./frontier.js";
import { History } from "./history.js";
import { showMemory } from "./memory.js";
import { showModels, showSearch, showUploads } from "./models.js";
import { showProcess } from "./process.js";
import { showRecent } from "./recent.js";
import { follow } from "./stream.js";
import { Try } from "./tryit.js";

const element = (id) => document.getElementById(id);
const history = new History(), frontier = new Frontier(attempt), trying = new Try(attempt);
let chosen = null, planned = 0, models = [], started = null;

async function attempt(words, act) {
  element("fault").hidden = true;
  try {
    await act();
  } catch (error) {
    element("fault").textContent = `Cannot ${words}: ${error.message}`;
    element("fault").hidden = false;
    askForKey(error);
  }
}

function askForKey(error) {
  if (error?.status === 401 || error?.status === 403) element("key-form").hidden = false;
}

const named = (name) => models.find((model) => model.name === name);

// A model that is not served has no details; its row says why.
const on = {
  load: (name) => attempt(`load ${name}`, () => answer(change(named(name).model, "load"), { method: "POST" })),
  unload: async (name) => {
    if (await confirmed(named(name).model))
      await attempt(`unload ${name}`, () => answer(change(named(name).model, "unload"), { method: "POST" }));
  },
  look: (name) => {
    choose(named(name));
    element("look-title").focus();
  },
};

// Whether whoever uses the page confirms that a model is unloaded; closing the question does not.
function confirmed(name) {
  const dialog = element("confirm");
  element("confirm-text").textContent = `Unload ${name}? Requests to it are refused until it is loaded again.`;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) =>
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "unload"), { once: true }));
}

function choose(model) {
  chosen = model.name;
  planned = 0;
  element("look").hidden = false;
  element("look-title").textContent = model.name;
  frontier.choose(model);
  trying.choose(model);
  show(model);
}

function show(model) {
  const facts = [
    `version ${model.version}`, model.architecture, `${size(model.plan_bytes)} of memory for ${size(model.weight_bytes)} of weights`,
    `${size(model.ahead_bytes)} read ahead`,
  ];
  if (model.predicted_seconds != null) facts.push(`predicted ${milliseconds(model.predicted_seconds)}`);
  const shapes = Object.entries(model.shapes ?? {});
  if (shapes.length) facts.push(`inferences ${shapes.map(([shape, count]) => `of ${shape}: ${count}`).join(", ")}`);
  if (model.bound_seconds != null) facts.push(`bound ${milliseconds(model.bound_seconds)}`);
  element("look-facts").textContent = facts.join(" · ");
  showRecent(history.of(model.name), now());
  frontier.now(model);
  if (model.plan_bytes !== planned) {
    planned = model.plan_bytes;
    attempt("show the arena", async () => showArena(await answer(look(model.model, `arena?version=${model.version}`))));
  }
}

// Milliseconds since 1970 on a clock that nobody sets while the page is open.
function now() {
  return performance.timeOrigin + performance.now();
}

function begin({ uptime_seconds, samples }) {
  started = now() - uptime_seconds * 1e3;
  history.begin(samples, now());
}

function take(state) {
  history.take(state, now());
  ({ models } = state);
  element("version").textContent = state.version;
  showProcess(state, started === null ? null : (now() - started) / 1e3);
  showMemory(state);
  showModels(models, chosen, on);
  showUploads(state.uploads);
  showSearch(state.search);
  const model = named(chosen);
  if (model?.state === "READY") show(model);
  else if (model === undefined || model.state === "UNAVAILABLE") {
    element("look").hidden = true;
    frontier.leave();
    chosen = null;
  }
}

function link(how, error) {
  element("link").textContent = how === "live" ? "live" : `no connection${error ? `: ${error.message}` : ""}`;
  element("link").classList.toggle("lost", how !== "live");
  askForKey(error);
}

element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(element("key").value.trim());
  element("key").value = "";
  element("key-form").hidden = true;
  element("fault").hidden = true;
});

element("confirm-yes").addEventListener("click", () => element("confirm").close("unload"));
element("confirm-no").addEventListener("click", () => element("confirm").close());

follow(begin, take, link);
