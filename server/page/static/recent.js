// Latency and stalls of the last two minutes.

import { axes, BOTTOM, HEIGHT, LEFT, line, RIGHT, scale, svg, TOP, WIDTH } from "./draw.js";
import { milliseconds } from "./format.js";

const SHOWN_MS = 120_000;

export function showRecent(samples, now) {
  const picture = document.getElementById("recent"), said = document.getElementById("recent-said");
  if (!samples.length) {
    picture.replaceChildren();
    said.textContent = "No answers yet.";
    return;
  }
  const most = Math.max(...samples.map((sample) => sample.delay));
  const x = scale(now - SHOWN_MS, now, LEFT, WIDTH - RIGHT), y = scale(0, most, HEIGHT - BOTTOM, TOP);
  const of = (key) => samples.map((sample) => [sample.at, sample[key]]);
  picture.replaceChildren(
    ...axes([[0, "0"], [most, milliseconds(most)]], y, [[now - SHOWN_MS * 0.94, "2 min ago"], [now - 4000, "now"]], x),
    ...of("delay").map(([at, delay]) => svg("circle", { class: "dot", cx: x(at), cy: y(delay), r: 2 })),
    line(of("delay"), x, y, "delay"), line(of("stall"), x, y, "stall"));
  const last = samples.at(-1);
  said.textContent = `Blue, latency of a run: ${milliseconds(last.delay)}. Orange, waiting for weights: ${milliseconds(last.stall)}.`;
}
