// The budget as a bar: who holds how much of it, of which kind.

import { html } from "./draw.js";
import { size } from "./format.js";

const SHARED = "(shared)";
const WORDS = {
  staging: "staging", ring: "ring of weights", resident: "weights that stay", arena: "arena of activations",
  scratch: "scratch of kernels", io: "inputs and outputs", sessions: "ONNX Runtime", objects: "Python",
  tokenizer: "tokenizers",
  requests: "requests", free: "free",
};
const ORDER = Object.keys(WORDS);

export function showMemory({ budget, memory }) {
  const free = budget.total_bytes - budget.used_bytes;
  const holders = Object.entries(memory).map(([name, kinds]) => [name === SHARED ? "in turns" : name, kinds]);
  holders.push(["requests", { requests: budget.request_bytes }]);
  document.getElementById("memory-sum").textContent =
    `${size(budget.used_bytes)} of a budget of ${size(budget.total_bytes)} reserved, ${size(free)} free; ` +
    `requests hold ${size(budget.request_used_bytes)} of their ${size(budget.request_bytes)}`;
  const bar = document.getElementById("memory-bar");
  bar.replaceChildren(...holders.map((holder) => segment(holder, budget.total_bytes)));
  const sums = { free };
  for (const [, kinds] of holders)
    for (const [kind, bytes] of Object.entries(kinds)) sums[kind] = (sums[kind] ?? 0) + bytes;
  document.getElementById("memory-kinds").replaceChildren(
    ...ORDER.filter((kind) => sums[kind]).map((kind) =>
      html("li", {}, html("i", { class: `k-${kind}` }), `${WORDS[kind]} ${size(sums[kind])}`)));
}

function segment([name, kinds], total) {
  const sum = Object.values(kinds).reduce((a, b) => a + b, 0);
  const parts = ORDER.filter((kind) => kinds[kind]).map((kind) => {
    const part = html("span", { class: `part k-${kind}`, title: `${name}, ${WORDS[kind]}: ${size(kinds[kind])}` });
    part.style.width = `${(100 * kinds[kind]) / sum}%`;
    return part;
  });
  const whole = html("div", {}, ...parts, html("span", { class: "name" }, name));
  whole.style.width = `${(100 * sum) / total}%`;
  return whole;
}
