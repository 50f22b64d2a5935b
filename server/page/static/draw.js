// Elements and the little of charts that all of them need.

export function html(tag, attributes = {}, ...children) {
  return made(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return made(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function made(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export const WIDTH = 600, HEIGHT = 220, LEFT = 62, RIGHT = 12, TOP = 12, BOTTOM = 26;

// A scale from [low, high] to pixels [from, to].
export function scale(low, high, from, to) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

// The two axes; `up` and `across`: [value, text] with the scales that place them.
export function axes(up, y, across, x) {
  const bottom = HEIGHT - BOTTOM;
  return [
    svg("path", { class: "axis", d: `M${LEFT},${TOP}V${bottom}H${WIDTH - RIGHT}` }),
    ...up.map(([value, text]) => svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, text)),
    ...across.map(([value, text]) =>
      svg("text", { x: x(value), y: bottom + 16, "text-anchor": "middle" }, text)),
  ];
}

export function line(points, x, y, className) {
  const path = points.map(([a, b], index) => `${index ? "L" : "M"}${x(a).toFixed(1)},${y(b).toFixed(1)}`);
  return svg("path", { class: className, d: path.join("") });
}
