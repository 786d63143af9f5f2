// Asks the daemon once a second and shows what it says. It changes nothing anywhere.

import { COUNTERS } from "./counters.js";
import { History, droppedBy } from "./history.js";
import { drawPicture } from "./picture.js";

const LOOK_MS = 1000;
const EVENTS_KEPT = 200;
const ORDER = { down: 0, silent: 1, degraded: 2, up: 3, disabled: 4 };

const history = new History();
const byId = (id) => document.getElementById(id);
const rows = new Map();
// Of each rule, by its name, since the last look.
const states = new Map();
let stats = null;
let chosen = null;
let sort = null;
const plots = [];

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

async function look() {
  const began = performance.now();
  try {
    const answer = await fetch("/v1/stats", { cache: "no-store" });
    if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
    stats = await answer.json();
    history.add(stats);
    states.clear();
    show();
  } catch (error) {
    byId("summary").textContent = `the daemon does not answer: ${error.message}`;
    byId("summary").className = "down";
  }
  // From beginning to beginning: what a look takes does not make the next one late.
  setTimeout(look, Math.max(LOOK_MS - (performance.now() - began), LOOK_MS / 4));
}

function stateOf(rule) {
  if (!states.has(rule.name)) states.set(rule.name, judge(rule));
  return states.get(rule.name);
}

function judge(rule) {
  if (rule.state === "down" || rule.state === "disabled") return rule.state;
  if (rule.silent_seconds !== undefined || rule.health?.state === "down") return "silent";
  return rule.state === "up" ? (rule.health?.state ?? "up") : rule.state;
}

function linkState(rule, end, kind) {
  if (rule.state === "disabled") return "idle";
  if (kind === "input" && !end.joined) return "down";
  if (kind === "output" && end.state !== "up") return end.state;
  const state = stateOf(rule);
  if (state === "silent") return "silent";
  if (kind === "input" && rule.health?.state === "degraded") return "degraded";
  if (rule.rates.packets_1s === 0) return "idle";
  if (kind === "input") {
    // Of several inputs only some may have a stream.
    const several = rule.inputs.length > 1;
    return several && history.came(rule.name, rule.inputs.indexOf(end), 1).packets === 0 ? "idle" : "up";
  }
  // Something comes but nothing leaves: all of it is dropped.
  return history.sent(rule.name, rule.outputs.indexOf(end), 1).packets > 0 ? "up" : "degraded";
}

function shown() {
  const wanted = byId("filter").value.toLowerCase();
  const text = (rule) =>
    [rule.name, rule.path, stateOf(rule), ...rule.inputs.map((i) => i.at), ...rule.outputs.map((o) => o.to),
      ...Object.entries(rule.labels ?? {}).map(([key, value]) => `${key}=${value}`)]
      .join(" ")
      .toLowerCase();
  const rules = stats.rules.filter((rule) => wanted === "" || text(rule).includes(wanted));
  const key = {
    name: (rule) => rule.name,
    state: (rule) => ORDER[stateOf(rule)],
    rate: (rule) => -rule.rates.packets_1s,
    dropped: (rule) => -droppedBy(rule).total,
  }[sort];
  if (!key) return rules;
  const keyed = rules.map((rule) => [key(rule), rule]);
  keyed.sort(([a], [b]) => (a < b ? -1 : Number(a > b)));
  return keyed.map(([, rule]) => rule);
}

function show() {
  const rules = shown();
  const count = (state) => stats.rules.filter((rule) => stateOf(rule) === state).length;
  byId("instance").textContent = `${stats.instance} ${stats.version}`;
  const summary = byId("summary");
  summary.className = "";
  summary.textContent =
    `${stats.rules.length} rules: ${count("up")} up, ${count("silent")} silent, ` +
    `${count("degraded")} degraded, ${count("down")} down, ${count("disabled")} disabled · up ${duration(stats.uptime_seconds)}`;
  for (const title of document.querySelectorAll("th[data-sort]")) {
    const order = ["rate", "dropped"].includes(title.dataset.sort) ? "descending" : "ascending";
    title.setAttribute("aria-sort", title.dataset.sort === sort ? order : "none");
  }
  showRows(rules);
  drawPicture(byId("picture"), chosen === null ? rules : rules.filter((rule) => rule.name === chosen), linkState);
  showWorkers();
  showPlots();
}

function showRows(rules) {
  const body = byId("rows");
  const wanted = rules.map((rule) => rows.get(rule.name) ?? makeRow(rule.name));
  rules.forEach((rule, index) => fillRow(wanted[index], rule));
  // Rows are moved only where the order differs: a thousand of them every second.
  const same = body.children.length === wanted.length && wanted.every((row, i) => body.children[i] === row.line);
  if (!same) body.replaceChildren(...wanted.map((row) => row.line));
  const known = new Set(stats.rules.map((rule) => rule.name));
  for (const name of rows.keys()) if (!known.has(name)) rows.delete(name);
}

function makeRow(name) {
  const line = document.createElement("tr");
  const cells = Array.from({ length: 10 }, () => line.insertCell());
  for (const index of [3, 4, 5, 6, 7, 8]) cells[index].className = "number";
  cells[9].className = "reasons";
  // A button, so that keys and screen readers find it; the click is the line's.
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = name;
  cells[0].append(button);
  line.dataset.rule = name;
  line.addEventListener("click", () => {
    chosen = chosen === name ? null : name;
    show();
  });
  const row = { line, cells, button };
  rows.set(name, row);
  return row;
}

function fillRow({ line, cells, button }, rule) {
  const state = stateOf(rule);
  const { packets_1s: now, packets_10s: long, bits_1s: bits } = rule.rates;
  const { reasons, total } = droppedBy(rule);
  const sent = rule.outputs.reduce((sum, output) => sum + output.sent.packets, 0);
  const why = rule.state_reason ?? rule.health?.reason;
  const drops = [...reasons].map(([reason, count]) => `${reason} ${whole.format(count)}`).join(", ");
  const texts = [
    rule.name, state, rule.path, whole.format(now), whole.format(long), short.format(bits),
    whole.format(rule.received.packets), whole.format(sent), whole.format(total),
    [why, drops].filter(Boolean).join("; "),
  ];
  texts.forEach((text, index) => {
    if (cells[index].textContent !== text) cells[index].textContent = text;
  });
  button.setAttribute("aria-pressed", String(chosen === rule.name));
  cells[1].className = state;
  line.title = why ?? rule.path_reason;
  const shade = { up: "", disabled: "", degraded: "amber" }[state] ?? "red";
  line.className = [shade, chosen === rule.name ? "chosen" : ""].join(" ").trim();
}

function showWorkers() {
  const texts = stats.workers.map(
    (worker) => `${worker.id} on CPU ${worker.cpu}: ${worker.state}, ${worker.restarts} restarts, ` +
      `${whole.format(worker.forwarded)} forwarded, ${whole.format(worker.buffer_exhausted)} lost`,
  );
  byId("workers").textContent = texts.length === 0 ? "none needed" : texts.join(" · ");
}

function makePlot(id, title) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 } };
  const values = (_, ticks) => ticks.map((tick) => short.format(tick));
  const clock = (_, ticks) => ticks.map((tick) => new Date(tick * 1000).toLocaleTimeString("en-GB"));
  const options = {
    title, width: byId(id).clientWidth || 600, height: 170,
    scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, 1) * 1.05] } },
    axes: [{ ...axis, values: clock, space: 80 }, { ...axis, values, size: 60 }],
    series: [{}, { stroke: colour("--accent"), fill: `${colour("--accent")}22`, width: 2 }],
  };
  return new uPlot(options, [[], []], byId(id));
}

// What is known of the chosen rule: why it is in its state, and what its packets say.
function showStream(rule) {
  const facts = [];
  if (rule) {
    const health = rule.health;
    facts.push(["rule", [rule.state, rule.state_reason ?? `${rule.path}: ${rule.path_reason}`]]);
    facts.push(["", words("rule", rule)]);
    rule.inputs.forEach((input, index) => {
      const rate = history.came(rule.name, index, 1).packets;
      const came = [`${whole.format(input.received.packets)} received`, `${whole.format(rate)}/s`];
      const texts = [...(rule.inputs.length > 1 ? came : []), ...words("input", input)];
      facts.push(["input", texts.length === 0 ? [] : [input.at, ...texts]]);
    });
    for (const output of rule.outputs) {
      const texts = words("output", output);
      facts.push(["output", texts.length === 0 ? [] : [output.to, ...texts]]);
    }
    if (health) facts.push(["stream", [health.state, health.reason ?? `longest gap in 10 s: ${time(health.gap_seconds_10s)}`]]);
    const rtp = health?.rtp;
    if (rtp) facts.push(["RTP", [...words("rtp", rtp),
      `SSRC ${rtp.ssrc.toString(16).padStart(8, "0")}, ${whole.format(rtp.ssrc_changes)} changes`]]);
    const ts = health?.ts;
    if (ts) facts.push(["MPEG-TS", words("ts", ts)]);
  }
  for (const stay of rule?.residence ?? []) {
    const below = (bound) => bound === undefined ? "above all bounds" : `below ${time(bound)}`;
    facts.push([`stay, ${stay.path}`, [`half ${below(stay.p50_seconds)}`, `99 % ${below(stay.p99_seconds)}`,
      `${whole.format(stay.samples)} looked at`]]);
  }
  const parts = facts.filter(([, texts]) => texts.length > 0).flatMap(([title, texts]) => {
    const [term, fact] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = title;
    fact.textContent = texts.join(" · ");
    return [term, fact];
  });
  byId("facts").replaceChildren(...parts);
}

// What is declared of a kind of thing, in words.
function words(kind, of) {
  const write = { count: whole.format, seconds: time, ago: duration };
  return COUNTERS[kind].flatMap(({ at, unit, text }) => {
    const value = at.split(".").reduce((part, name) => part?.[name], of);
    return value === undefined ? [] : [text.replace("{}", write[unit](value))];
  });
}

function time(seconds) {
  if (seconds > 0 && seconds < 0.001) return `${(seconds * 1e6).toFixed(1)} µs`;
  return seconds >= 1 ? `${seconds.toFixed(2)} s` : `${(seconds * 1000).toFixed(2)} ms`;
}

function duration(seconds) {
  const [days, hours, minutes] = [seconds / 86400, (seconds / 3600) % 24, (seconds / 60) % 60].map(Math.floor);
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  return minutes > 0 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${seconds.toFixed(0)} s`;
}

function showPlots() {
  byId("selected").textContent = chosen ?? "All rules";
  showStream(stats.rules.find((rule) => rule.name === chosen));
  const { times, packets, bits } = history.trail(chosen);
  plots[0].setData([times, packets]);
  plots[1].setData([times, bits]);
}

function makePlots() {
  plots.splice(0).forEach((plot) => plot.destroy());
  plots.push(makePlot("packets", "packets/s received"), makePlot("bits", "bit/s received"));
  if (stats) showPlots();
}

function follow() {
  const source = new EventSource("/v1/events?recent=200&brief=true");
  const kinds = ["rule_up", "rule_degraded", "rule_down", "rule_disabled", "rule_added", "rule_removed", "rule_changed",
    "settings_changed", "output_up", "output_degraded", "output_down", "drops_began", "drops_ended",
    "stream_up", "stream_degraded", "stream_down", "joined",
    "join_failed", "worker_restarted", "link_changed", "next_hop_changed", "reloaded",
    "reload_failed"];
  for (const kind of kinds) source.addEventListener(kind, (told) => tell(JSON.parse(told.data)));
  source.addEventListener("missed", (told) => {
    tell({ at_ms: Date.now(), kind: "missed", message: `${told.data} events were missed` });
  });
}

function tell(event) {
  const line = document.createElement("li");
  const time = document.createElement("time");
  const at = new Date(event.at_ms);
  const isToday = at.toDateString() === new Date().toDateString();
  time.textContent = isToday ? at.toLocaleTimeString() : at.toLocaleString();
  line.append(time, event.message);
  if (/down|failed/.test(event.kind)) line.className = "down";
  if (/degraded/.test(event.kind)) line.className = "degraded";
  const list = byId("events");
  list.prepend(line);
  while (list.children.length > EVENTS_KEPT) list.lastChild.remove();
}

byId("filter").addEventListener("input", () => stats && show());
for (const title of document.querySelectorAll("th[data-sort]")) {
  title.addEventListener("click", () => {
    sort = sort === title.dataset.sort ? null : title.dataset.sort;
    if (stats) show();
  });
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", makePlots);
addEventListener("resize", () => plots.forEach((plot) => {
  plot.setSize({ width: plot.root.parentElement.clientWidth, height: 170 });
}));
makePlots();
follow();
look();
