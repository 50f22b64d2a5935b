// The arena of a model over the moments of one sweep.

import { axes, BOTTOM, HEIGHT, LEFT, RIGHT, scale, svg, TOP, WIDTH } from "./draw.js";
import { size } from "./format.js";

const CLASS = { value: "value", strip: "strip", weights: "held" };

export function showArena({ arena_bytes: bytes, boxes }) {
  const picture = document.getElementById("arena"), said = document.getElementById("arena-said");
  if (!boxes.length) {
    picture.replaceChildren();
    said.textContent = "Its partitions have arenas of their own.";
    return;
  }
  const moments = Math.max(...boxes.map((box) => box.end));
  const x = scale(0, moments, LEFT, WIDTH - RIGHT), y = scale(0, bytes, HEIGHT - BOTTOM, TOP);
  picture.replaceChildren(
    ...axes([[0, "0"], [bytes, size(bytes)]], y, [[0, "first kernel"], [moments * 0.94, "last"]], x),
    ...boxes.map((box) =>
      svg("rect", {
        class: CLASS[box.kind], x: x(box.start), width: x(box.end) - x(box.start),
        y: y(box.offset + box.n_bytes), height: y(box.offset) - y(box.offset + box.n_bytes),
      }, svg("title", {}, `${box.name}: ${size(box.n_bytes)}`))));
  const count = (kind) =>
    new Set(boxes.filter((box) => box.kind === kind).map((box) => `${box.name} ${box.offset}`)).size;
  const parts = [`${count("value")} values`];
  if (count("strip")) parts.push(`${count("strip")} line buffers`);
  if (count("weights")) parts.push("weights of regions");
  said.textContent = `${size(bytes)} hold ${parts.join(", ")}, one after the other.`;
}
