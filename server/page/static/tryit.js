// An image to the model: labels, or boxes drawn over it.

import { answer, model as path } from "./api.js";
import { html, svg } from "./draw.js";
import { milliseconds } from "./format.js";

const element = (id) => document.getElementById(id);

export class Try {
  #model = null;
  #turn = 0;

  constructor(attempt) {
    element("image").addEventListener("change", (event) => {
      const [file] = event.target.files;
      if (file) attempt("try the image", () => this.#send(file));
    });
  }

  choose(model) {
    this.#model = model;
    this.#turn += 1;
    element("try").hidden = !model.takes;
    element("image").value = "";
    this.#clear();
    this.#picture(null);
  }

  #clear() {
    element("boxes").replaceChildren();
    element("answers").replaceChildren();
    element("answer-said").textContent = "";
  }

  #picture(file) {
    const shown = element("shown");
    if (shown.src) URL.revokeObjectURL(shown.src);
    shown.hidden = !file;
    if (file) [shown.src, shown.alt] = [URL.createObjectURL(file), file.name];
    else shown.removeAttribute("src");
  }

  async #send(file) {
    const turn = (this.#turn += 1), { model, version, takes } = this.#model;
    this.#clear();
    this.#picture(file);
    element("answer-said").textContent = "running";
    try {
      const found = await answer(path(model, `/versions/${version}:${takes}`), { method: "POST", body: file });
      if (turn !== this.#turn) return;
      if (takes === "detect") this.#boxes(found);
      else this.#labels(found);
    } catch (error) {
      if (turn === this.#turn) element("answer-said").textContent = "";
      throw error;
    }
  }

  #labels({ predictions, delay_ms: delay }) {
    element("answer-said").textContent = `${milliseconds(delay / 1e3)}`;
    element("answers").replaceChildren(...predictions.map((each) => html("li", {}, named(each))));
  }

  #boxes({ detections, image, delay_ms: delay }) {
    element("answer-said").textContent = `${detections.length} objects in ${milliseconds(delay / 1e3)}`;
    const drawn = element("boxes");
    drawn.setAttribute("viewBox", `0 0 ${image.width} ${image.height}`);
    drawn.setAttribute("preserveAspectRatio", "none");
    drawn.replaceChildren(...detections.map(({ box: [left, top, right, bottom], ...each }) =>
      svg("rect", { x: left, y: top, width: right - left, height: bottom - top }, svg("title", {}, named(each)))));
    element("answers").replaceChildren(...detections.map((each) => html("li", {}, named(each))));
  }
}

function named({ label, index, score, probability }) {
  return `${label ?? `class ${index}`}: ${(100 * (score ?? probability)).toFixed(1)} %`;
}
