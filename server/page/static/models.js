// The table of models: a row each, kept while the model is there, so that the focus stays where it is.

import { html } from "./draw.js";
import { milliseconds, rate, size } from "./format.js";
import { count } from "./process.js";

// Columns that narrow screens have room for.
const NARROW = ["memory", "delay"];

const narrow = matchMedia("(max-width: 44rem)");

const rows = new Map();

narrow.addEventListener("change", () => rows.forEach(spread));

// `on`: { load, unload, look }, each called with a name.
export function showModels(models, chosen, on) {
  const body = document.querySelector("#models tbody");
  for (const [name, row] of rows)
    if (!models.some((model) => model.name === name)) {
      row.element.remove();
      rows.delete(name);
    }
  for (const model of models) {
    if (!rows.has(model.name)) {
      rows.set(model.name, newRow(model.name, on));
      body.append(rows.get(model.name).element);
    }
    fill(rows.get(model.name), model, model.name === chosen);
  }
}

// What is being uploaded, and how far that is.
export function showUploads(uploads) {
  const list = document.getElementById("uploads");
  list.hidden = !uploads.length;
  list.replaceChildren(...uploads.map(({ name, step, detail }) =>
    html("li", {}, `Upload of ${name}: ${step}${detail && `, ${detail}`}`)));
}

// How far the search for better plans is; null: there is none.
export function showSearch(said) {
  const line = document.getElementById("search");
  line.hidden = said === null;
  line.textContent = `Better plans are being searched for${said ? `: ${said}` : ""}.`;
}

function newRow(name, on) {
  const cells = {};
  for (const key of ["memory", "weights", "delay", "stalls", "rate", "waiting", "errors"])
    cells[key] = html("td", { class: NARROW.includes(key) ? "number" : "number more" });
  const about = html("td", { class: "state" });
  const state = html("span"), reason = html("span", { class: "reason" });
  const button = (words, act) => {
    const made = html("button", { type: "button", "aria-label": `${words} ${name}` }, words);
    made.addEventListener("click", () => act(name));
    return made;
  };
  const buttons = { look: button("Details", on.look), load: button("Load", on.load), unload: button("Unload", on.unload) };
  about.append(state, reason);
  const element = html("tr", {}, html("th", { scope: "row", class: "model" }, name), about, ...Object.values(cells),
    html("td", { class: "actions" }, buttons.look, " ", buttons.load, buttons.unload));
  return { element, cells, about, state, reason, buttons };
}

// On a narrow screen the reason why a model does not serve has the room of the figures that it has not.
function spread({ element, about }) {
  about.colSpan = narrow.matches && element.classList.contains("away") ? 1 + NARROW.length : 1;
}

function fill(row, model, isChosen) {
  const { element, cells, state, reason, buttons } = row;
  const ready = model.state === "READY", has = (value, show) => (value == null ? "–" : show(value));
  element.classList.toggle("chosen", isChosen);
  element.classList.toggle("away", !ready);
  spread(row);
  // What was unloaded or evicted on purpose is no fault.
  const absence = ready ? "ready" : model.absence ?? model.state.toLowerCase();
  state.textContent = absence;
  state.className = `state-${absence}`;
  reason.textContent = ready ? model.architecture : model.reason;
  cells.memory.textContent = has(model.plan_bytes, size);
  cells.weights.textContent = model.weight_bytes ? size(model.weight_bytes) : "–";
  cells.delay.textContent = milliseconds(model.delay ?? model.predicted_seconds);
  cells.delay.title = model.delay == null ? "predicted" : "of the last answers";
  cells.stalls.textContent = milliseconds(model.stall);
  cells.rate.textContent = ready ? rate(model.rate ?? 0) : "–";
  cells.waiting.textContent = has(model.waiting, String);
  cells.errors.textContent = String(count(model.errors));
  cells.errors.title = Object.entries(model.errors ?? {}).map(([name, each]) => `${name} ${each}`).join(", ");
  buttons.look.disabled = !ready;
  buttons.load.hidden = ready;
  buttons.load.disabled = model.state === "LOADING";
  buttons.unload.hidden = !ready;
}
