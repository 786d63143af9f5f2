// Inputs on the left, rules in the middle, outputs on the right; links have the colour of their state.

import { whole } from "./words.js";

// With more rules none is drawn until one is selected.
export const PICTURED = 12;

const [ROW, BOX] = [30, 24];
// As wide as displayed, so that the font size matches the page; on narrower screens it is scaled.
const LEAST_WIDTH = 460;
const NAMESPACE = "http://www.w3.org/2000/svg";

function element(name, attributes, text) {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function box(x, width, y, text, title) {
  const group = element("g", {});
  const letters = Math.floor(width / 7.2);
  const short = text.length > letters ? `${text.slice(0, letters - 1)}…` : text;
  group.append(
    element("title", {}, title ?? text),
    element("rect", { x, y: y - BOX / 2, width, height: BOX, rx: 4 }),
    element("text", { x: x + 8, y: y + 4 }, short),
  );
  return group;
}

function link(x1, y1, x2, y2, state) {
  const middle = (x1 + x2) / 2;
  const d = `M${x1},${y1} C${middle},${y1} ${middle},${y2} ${x2},${y2}`;
  return element("path", { d, class: state });
}

// `linkState(rule, input or output, kind)` returns the state of a link.
export function drawPicture(svg, rules, linkState) {
  const parts = [];
  const width = Math.max(svg.clientWidth, LEAST_WIDTH);
  // The ends take 3 parts each, the rule 2, the links 1 each.
  const part = (width - 4) / 10;
  const [left, right] = [2 + 4 * part, 2 + 6 * part];
  let y = ROW / 2 + 2;
  for (const rule of rules) {
    const rows = Math.max(rule.inputs.length, rule.outputs.length, 1);
    const middle = y + ((rows - 1) * ROW) / 2;
    const at = (index, count) => middle + (index - (count - 1) / 2) * ROW;
    rule.inputs.forEach((input, index) => {
      const own = at(index, rule.inputs.length);
      parts.push(link(left - part, own, left, middle, linkState(rule, input, "input")));
      parts.push(box(2, 3 * part, own, input.at, input.reason ?? `${input.at} joined: ${input.joined}, ${whole(input.received.packets)} received`));
    });
    rule.outputs.forEach((output, index) => {
      const own = at(index, rule.outputs.length);
      parts.push(link(right, middle, right + part, own, linkState(rule, output, "output")));
      parts.push(box(right + part, 3 * part, own, output.to, output.reason ?? output.unheard ?? `${output.to} ${output.state}`));
    });
    parts.push(box(left, 2 * part, middle, rule.name, `${rule.name}: ${rule.path}, ${rule.path_reason}`));
    y += rows * ROW + 6;
  }
  svg.setAttribute("viewBox", `0 0 ${width} ${Math.max(y - ROW / 2 + 4, ROW)}`);
  svg.replaceChildren(...parts);
}
