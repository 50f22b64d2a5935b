// Memory against latency: the plans that a model may have, the one that it has, and a slider for another.

import { answer, ask, change, look } from "./api.js";
import { axes, BOTTOM, HEIGHT, LEFT, line, RIGHT, scale, svg, TOP, WIDTH } from "./draw.js";
import { milliseconds, size } from "./format.js";
import { told } from "./stream.js";

const element = (id) => document.getElementById(id);

export class Frontier {
  #points = [];
  #model = null;
  #drawn = "";
  #asking = new AbortController();

  // `attempt(words, act)` runs what may be refused and says so.
  constructor(attempt) {
    element("frontier-ask").addEventListener("click", () => attempt("plan the frontier", () => this.#plan()));
    element("most").addEventListener("input", () => this.#draw(true));
    element("replan").addEventListener("submit", (event) => {
      event.preventDefault();
      attempt("replan", () => this.#replan(this.#asked.plan_bytes));
    });
    element("unlimit").addEventListener("click", () => attempt("replan", () => this.#replan(null)));
  }

  // Show that of another model: none until it is asked for. Versions side by side share what is planned.
  choose(model) {
    this.leave();
    element("frontier-figure").hidden = model.name !== model.model;
    this.#points = [];
    this.#drawn = "";
    this.#model = null;
    element("frontier").replaceChildren();
    element("frontier-said").textContent = "Planning it takes a core for some seconds.";
    element("frontier-ask").hidden = element("frontier-ask").disabled = false;
    element("replan").hidden = true;
  }

  // Nothing is planned for a page that looks at another model, or at none.
  leave() {
    this.#asking.abort();
    this.#asking = new AbortController();
  }

  // The model as it is now.
  now(model) {
    this.#model = model;
    this.#draw(false);
  }

  get #asked() {
    return this.#points[Number(element("most").value)];
  }

  async #plan() {
    const button = element("frontier-ask"), { signal } = this.#asking;
    button.disabled = true;
    try {
      this.#points = await this.#found(this.#model.name, signal);
    } catch (error) {
      if (signal.aborted) return;
      element("frontier-said").textContent = "";
      throw error;
    } finally {
      if (!signal.aborted) button.disabled = false;
    }
    button.hidden = true;
    element("replan").hidden = false;
    const most = element("most");
    most.max = this.#points.length - 1;
    most.value = this.#points.findLastIndex((point) => point.plan_bytes <= this.#model.plan_bytes);
    this.#draw(true);
  }

  // What the server plans for this page, which says how far it is.
  async #found(name, signal) {
    element("frontier-said").textContent = "Planning.";
    for await (const { kind, said } of told(await ask(look(name, "frontier"), { signal }))) {
      signal.throwIfAborted();
      if (kind === "error") throw new Error(said.error);
      if (kind === "plans") return said;
      element("frontier-said").textContent = `Planning: ${said.step}, ${said.done} of ${said.of}.`;
    }
    throw new Error("the server ended the search");
  }

  async #replan(bytes) {
    const buttons = element("replan").querySelectorAll("button"), said = element("replan-said");
    const able = (may) => buttons.forEach((button) => (button.disabled = !may));
    able(false);
    said.textContent = `planning ${this.#model.name} again`;
    try {
      await answer(change(this.#model.name, "replan"), { method: "POST", json: { memory_bytes: bytes } });
    } finally {
      able(true);
      said.textContent = "";
    }
  }

  #draw(always) {
    if (!this.#points.length) return;
    const { plan_bytes: bytes, predicted_seconds: predicted, delay } = this.#model;
    const seconds = delay ?? predicted, key = `${bytes} ${seconds}`;
    if (!always && key === this.#drawn) return;
    this.#drawn = key;
    const points = this.#points, asked = this.#asked;
    const most = Math.max(...points.map((point) => point.seconds), seconds ?? 0);
    // Plans lie close together where memory is short.
    const log = (value) => Math.log(value);
    const low = Math.min(points[0].plan_bytes, bytes), high = Math.max(points.at(-1).plan_bytes, bytes);
    const x = scale(log(low), log(high), LEFT + 8, WIDTH - RIGHT - 20), y = scale(0, most, HEIGHT - BOTTOM, TOP + 6);
    const at = (point) => [log(point.plan_bytes), point.seconds];
    element("frontier").replaceChildren(
      ...axes([[0, "0"], [most, milliseconds(most)]], y, [[log(low), size(low)], [log(high), size(high)]], x),
      line(points.map(at), x, y, "delay"),
      ...points.map((point) =>
        svg("circle", { class: point === asked ? "point asked" : "point", cx: x(at(point)[0]), cy: y(at(point)[1]), r: point === asked ? 7 : 3.5 },
          svg("title", {}, `${size(point.plan_bytes)}: ${milliseconds(point.seconds)}`))),
      ...(seconds == null ? [] : [svg("circle", { class: "now", cx: x(log(bytes)), cy: y(seconds), r: 5 }, svg("title", {}, "today"))]));
    element("most-said").textContent = `${size(asked.plan_bytes)}, ${milliseconds(asked.seconds)}`;
    element("most").setAttribute("aria-valuetext", element("most-said").textContent);
    const estimated = points.some((point) => point.estimated) ? " Delays are estimated: nobody measured a profile." : "";
    element("frontier-said").textContent =
      `Orange: today, ${size(bytes)}${seconds == null ? "" : `, ${milliseconds(seconds)}`}.${estimated}`;
  }
}
