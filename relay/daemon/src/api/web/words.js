// Texts of numbers, times and counters, as in the daemon's other views.

import { COUNTERS } from "./counters.js";

const groups = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

// 1 234 567, as in the tables of `mcr`.
export function whole(number) {
  return groups.format(number).replaceAll(",", "\u202f");
}

export function scaled(number, unit) {
  for (const prefix of ["", "k", "M", "G"]) {
    if (number < 999.5) return `${number.toFixed(prefix !== "" && number < 99.95 ? 1 : 0)} ${prefix}${unit}`;
    number /= 1000;
  }
  return `${number.toFixed(1)} T${unit}`;
}

export function time(seconds) {
  if (seconds > 0 && seconds < 0.001) return `${(seconds * 1e6).toFixed(1)} µs`;
  return seconds >= 1 ? `${seconds.toFixed(2)} s` : `${(seconds * 1000).toFixed(2)} ms`;
}

export function duration(seconds) {
  const [days, hours, minutes] = [seconds / 86400, (seconds / 3600) % 24, (seconds / 60) % 60].map(Math.floor);
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  return minutes > 0 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${seconds.toFixed(0)} s`;
}

// The reader's local time of day, 24 hours; on another day with the date.
export function clock(at) {
  const two = (number) => String(number).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const hour = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return at.toDateString() === new Date().toDateString() ? hour : `${day} ${hour}`;
}

// A count with its noun: 1 packet, 12 000 packets.
export function things(number, noun) {
  return `${whole(number)} ${noun}${plural(number)}`;
}

// The declared texts of a kind of counter.
export function words(kind, of) {
  const write = { count: whole, seconds: time, ago: duration };
  return COUNTERS[kind].flatMap(({ at, unit, text }) => {
    const value = at.split(".").reduce((part, name) => part?.[name], of);
    return value === undefined ? [] : [text.replace("{s}", plural(value)).replace("{}", write[unit](value))];
  });
}

function plural(number) {
  return number === 1 ? "" : "s";
}

export function drops(reasons) {
  return [...reasons].map(([reason, count]) => `${reason} ${whole(count)}`).join(", ");
}

export function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// A table; a cell is a text, an element, or a text and its class.
export function tableOf(titles, rows) {
  const table = element("table");
  const head = element("tr");
  head.append(...titles.map((title) => element("th", "", title)));
  const lines = rows.map((cells) => {
    const line = element("tr");
    line.append(...cells.map((cell) => {
      const made = element("td", Array.isArray(cell) ? cell[1] : "");
      made.append(Array.isArray(cell) ? cell[0] : cell);
      return made;
    }));
    return line;
  });
  table.append(head, ...lines);
  return table;
}
