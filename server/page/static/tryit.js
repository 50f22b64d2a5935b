// An image or a text to the model: labels, boxes, a mask or depth drawn over it, a vector, or tensors; and the command that asks the same.

import { answer, ask, keyOption, model as path } from "./api.js";
import { html } from "./draw.js";
import { milliseconds } from "./format.js";

// Boxes that are fetched; the slider shows those above its score.
const LEAST_SCORE = 0.05;

const element = (id) => document.getElementById(id);

export class Try {
  #model = null;
  #turn = 0;
  #found = null;

  constructor(attempt) {
    element("image").addEventListener("change", (event) => {
      const [file] = event.target.files;
      if (file) attempt("try the image", () => this.#send(file));
    });
    element("send-text").addEventListener("click", () => {
      const text = element("text").value;
      if (text) attempt("try the text", () => this.#send(null, { text }));
    });
    element("threshold").addEventListener("input", () => this.#boxes());
    element("copy").addEventListener("click", () => this.#copy());
  }

  choose(model) {
    this.#model = model;
    this.#turn += 1;
    element("try-not").hidden = Boolean(model.takes);
    element("try-not").textContent = model.takes ? "" : `This model takes no images: ${model.takes_none}.`;
    element("try-file").hidden = !model.takes || Boolean(model.takes_text);
    element("try-text").hidden = !model.takes_text;
    element("threshold-line").hidden = model.takes !== "detect";
    element("threshold").value = model.score_threshold ?? 0;
    element("threshold").min = Math.min(LEAST_SCORE, model.score_threshold ?? 0);
    element("image").value = "";
    element("copied").textContent = "";
    element("curl").textContent = this.#command();
    this.#clear();
    this.#picture(null);
    this.#said();
  }

  get #address() {
    const { model, version, takes } = this.#model;
    return path(model, `/versions/${version}${takes ? `:${takes}` : ""}`);
  }

  #command() {
    const { takes, takes_text: text } = this.#model, address = new URL(this.#address, document.baseURI);
    const sends = text ? ` -d '{"text": "..."}'` : takes ? " --data-binary @image.jpg" : "";
    return `curl -fsS${keyOption()}${sends} '${address}'`;
  }

  async #copy() {
    const command = element("curl");
    try {
      await navigator.clipboard.writeText(command.textContent);
      element("copied").textContent = "copied";
    } catch {
      // A page over plain HTTP from another machine may not write the clipboard.
      getSelection().selectAllChildren(command);
      element("copied").textContent = "selected: press Ctrl+C";
    }
  }

  #clear() {
    this.#found = null;
    element("boxes").replaceChildren();
    element("mask").hidden = true;
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

  async #send(file, json) {
    const turn = (this.#turn += 1), { takes } = this.#model;
    const more = { detect: `?score_threshold=${element("threshold").min}`, depth: "?draw=1" }[takes] ?? "";
    this.#clear();
    this.#picture(file);
    element("answer-said").textContent = "running";
    try {
      const options = { method: "POST", body: file ?? undefined, json };
      if (takes === "depth") {
        const response = await ask(this.#address + more, options), drawn = await response.blob();
        if (turn !== this.#turn) return;
        this.#picture(new File([drawn], file.name));
        element("answer-said").textContent = `depth from ${range(response)}`;
        return;
      }
      const found = await answer(this.#address + more, options);
      if (turn !== this.#turn) return;
      this.#found = found;
      if (takes === "detect") this.#boxes();
      else this.#list(found, { classify: labels, segment: areas, embed: vector, infer: tensors }[takes](found));
      if (takes === "segment") mask(element("mask"), found);
    } catch (error) {
      if (turn === this.#turn) element("answer-said").textContent = "";
      throw error;
    }
  }

  #list({ delay_ms: delay }, lines) {
    element("answer-said").textContent = delay === undefined ? "" : milliseconds(delay / 1e3);
    element("answers").replaceChildren(...lines.map((line) => html("li", {}, ...[line].flat())));
  }

  #said() {
    element("threshold-said").textContent = Number(element("threshold").value).toFixed(2);
  }

  // Draw the boxes whose score is at least the slider's.
  #boxes() {
    this.#said();
    if (!this.#found) return;
    const { detections, image, delay_ms: delay } = this.#found, least = Number(element("threshold").value);
    const shown = detections.filter(({ score }) => score >= least);
    element("answer-said").textContent = `${shown.length} objects in ${milliseconds(delay / 1e3)}`;
    element("boxes").replaceChildren(...shown.map((each) => box(each, image)));
    element("answers").replaceChildren(...shown.map((each) => html("li", {}, named(each))));
  }
}

const range = ({ headers }) => ["minimum", "maximum"].map((end) => Number(headers.get(`X-Depth-${end}`)).toPrecision(4)).join(" to ");

const labels = ({ predictions }) => predictions.map(named);

// What classes of a mask are called, in which colour, and their part of the image.
function areas({ classes, image: { width, height } }) {
  return classes.map(({ label, color, pixels }) => {
    const swatch = html("i", { class: "swatch" });
    swatch.style.background = color;
    return [swatch, ` ${label}: ${((100 * pixels) / (width * height)).toFixed(1)} %`];
  });
}

function vector({ embedding, tokens, truncated }) {
  const first = embedding.slice(0, 4).map((each) => each.toPrecision(4)).join(", ");
  const said = tokens === undefined ? [] : [`${tokens} tokens${truncated ? ", the text has more" : ""}`];
  return [`${embedding.length} numbers: ${first}, ...`, ...said];
}

function tensors({ outputs }) {
  return outputs.map(({ name, datatype, shape, data }) => {
    const range = data.reduce(([low, high], each) => [Math.min(low, each), Math.max(high, each)], [Infinity, -Infinity]);
    const values = range.every(Number.isFinite) ? `, from ${range.map((each) => each.toPrecision(4)).join(" to ")}` : "";
    return `${name}: ${datatype} [${shape.join(", ")}]${values}`;
  });
}

// Paint the runs of a mask: what is background, or no class, is clear.
function mask(canvas, { mask: { width, height, runs }, classes }) {
  const pixels = new Uint32Array(width * height), colors = new Map(classes.map(({ index, color }) => [index, paint(color)]));
  for (let at = 0, next = 0; next < runs.length; next += 2) {
    pixels.fill(colors.get(runs[next]) ?? 0, at, at + runs[next + 1]);
    at += runs[next + 1];
  }
  [canvas.width, canvas.height] = [width, height];
  canvas.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), width), 0, 0);
  canvas.hidden = false;
}

// #rrggbb as a pixel has it in memory; black is the background.
function paint(color) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return red || green || blue ? ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0 : 0;
}

// A box in parts of the image, so that it keeps its place when the picture is scaled.
function box({ box: [left, top, right, bottom], ...each }, { width, height }) {
  const made = html("div", {}, html("span", {}, each.label)), part = (value, of) => `${(100 * value) / of}%`;
  made.style.left = part(left, width);
  made.style.top = part(top, height);
  made.style.width = part(right - left, width);
  made.style.height = part(bottom - top, height);
  return made;
}

function named({ label, score, probability }) {
  return `${label}: ${(100 * (score ?? probability)).toFixed(1)} %`;
}
