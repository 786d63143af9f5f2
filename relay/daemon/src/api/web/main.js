// Requests statistics once a second and shows them. `actions` makes changes. Few rules are requested all; of
// many only the shown ones, selected by the daemon, with the totals of all.

import { Actions } from "./actions.js";
import { ask, hasAnswered, secondsSinceAnswer } from "./ask.js";
import { Events } from "./events.js";
import { lookAtFleet } from "./fleet.js";
import { History } from "./history.js";
import { drawPicture, PICTURED } from "./picture.js";
import { acts, me } from "./session.js";
import { begin } from "./sign_in.js";
import { changes, droppedBy, judge, linkState, reason, STATES, TROUBLE } from "./state.js";
import { Table } from "./table.js";
import { clock, duration, element, scaled, things, time, whole, words } from "./words.js";

const LOOK_MS = 1000;
// Older statistics are shown in grey.
const STALE_SECONDS = 3;
const ROWS = 100;
// Up to this many rules are requested all, and selected here without a request.
const WHOLE = 1000;
// The daemon's names of the table's orders.
const ORDERS = { name: "name", state: "state", rate: "rate", dropped: "drops" };

const history = new History();
const events = new Events();
const byId = (id) => document.getElementById(id);
const table = new Table(byId("rows"), (name) => choose(chosen === name ? null : name));
// The state of each rule by name at the last sample.
let states = new Map();
const actions = new Actions(table, () => stats?.rules.find(({ name }) => name === chosen), lookSoon);
const plots = [];
let stats = null;
let [chosen, sort, only] = [null, "state", null];
let limit = ROWS;
let isWhole = true;
// The timer of the next sample, whether one is in progress, and whether another follows at once.
let [next, isLooking, again] = [undefined, false, false];

// Shows the change that waits to be confirmed, and unsaved changes.
function notice({ pending, unsaved, state_reason: trouble, address_conflicts: conflicts = [] }) {
  const told = [];
  if (trouble && !conflicts.includes(trouble)) told.push(trouble);
  if (pending && !acts) told.push(`${things(pending.seconds, "second")} to confirm the change to generation ${pending.generation}`);
  if (unsaved) told.push(`${things(unsaved, "change")} ${unsaved === 1 ? "is" : "are"} not saved`);
  byId("notice").textContent = told.join("; ");
  showConflicts(conflicts);
}

// Addresses of the relay that other hosts on its links use too.
function showConflicts(conflicts) {
  const list = byId("conflicts");
  // Setting the same text again would be announced again.
  if ([...list.children].map((one) => one.textContent).join() === conflicts.join()) return;
  list.replaceChildren(...conflicts.map((text) => element("p", "down", text)));
}

// Requests statistics at once, after an action.
function lookSoon() {
  again = true;
  if (isLooking) return;
  clearTimeout(next);
  look();
}

async function look() {
  if (acts && me.client === null) return;
  const began = performance.now();
  [isLooking, again] = [true, false];
  let hasFailed = false;
  try {
    let status;
    [stats, status] = await Promise.all([ask(`/v1/stats?${question()}`), ask("/v1/status")]);
    notice(status);
    actions.show(status);
    hasAnswered();
    const isFew = stats.selection.total <= WHOLE;
    if (isFew !== isWhole) [isWhole, again] = [isFew, true];
    history.add(stats);
    const before = states;
    states = new Map(stats.rules.map((rule) => [rule.name, judge(rule)]));
    speak(changes(before, states));
    show();
    showAge();
    await Promise.all([remember(), events.look(byId("events")), lookAtFleet(byId("fleet"), stats.fleet, lookSoon)]);
  } catch (error) {
    hasFailed = true;
    byId("summary").textContent = `the daemon does not answer: ${error.message}`;
    byId("summary").className = "down";
  }
  // Measured from start to start: the duration of a request does not delay the next. With thousands of rules
  // one takes long, and the daemon has other work.
  const took = performance.now() - began;
  isLooking = false;
  const wait = Math.max(LOOK_MS - took, hasFailed ? 0 : 3 * took - LOOK_MS);
  const most = Math.max(STALE_SECONDS * 1000 - took - LOOK_MS / 4, LOOK_MS / 4);
  next = setTimeout(look, again ? 0 : Math.min(Math.max(wait, LOOK_MS / 4), most));
}

// The query for the rules to request.
function question() {
  if (isWhole) return new URLSearchParams({ limit: WHOLE });
  const asked = new URLSearchParams({ limit, order: ORDERS[sort] });
  if (only !== null) asked.set("state", only);
  if (byId("filter").value !== "") asked.set("filter", byId("filter").value);
  // Names contain no comma; text from the address may.
  if (chosen !== null && !chosen.includes(",")) asked.set("rules", chosen);
  return asked;
}

// Shows the available part of the selection, and requests the rest if not all rules are requested.
function select() {
  if (!stats) return;
  show();
  if (!isWhole) lookSoon();
}

// Requests the last hour for the charts.
async function remember() {
  const name = stats.rules.some((rule) => rule.name === chosen) ? chosen : null;
  if (!history.wants(name)) return;
  // A rule removed meanwhile has none.
  const told = await ask(`/v1/history?rules=${encodeURIComponent(name ?? "")}`).catch(() => null);
  if (told === null) return;
  history.begin(name, told);
  showPlots(stats.rules.find((rule) => rule.name === chosen));
}

// The selected rules, worst first unless another order is chosen.
function wanted() {
  const filter = byId("filter").value.toLowerCase();
  const text = (rule) =>
    [rule.name, rule.path, states.get(rule.name), ...rule.inputs.map((i) => i.at), ...rule.outputs.map((o) => o.to),
      ...Object.entries(rule.labels ?? {}).map(([key, value]) => `${key}=${value}`)]
      .join(" ")
      .toLowerCase();
  const is = (rule) =>
    (only === null || states.get(rule.name) === only) && (filter === "" || text(rule).includes(filter));
  const key = {
    name: (rule) => rule.name,
    state: (rule) => STATES.indexOf(states.get(rule.name)),
    rate: (rule) => -rule.rates.packets_1s,
    dropped: (rule) => -droppedBy(rule).total,
  }[sort];
  const keyed = stats.rules.filter(is).map((rule) => [key(rule), rule]);
  keyed.sort(([a], [b]) => (a < b ? -1 : Number(a > b)));
  return keyed.map(([, rule]) => rule);
}

function show() {
  const rules = wanted();
  byId("instance").textContent = `${stats.host} · ${stats.instance} ${stats.version}`;
  byId("summary").className = "";
  byId("summary").textContent = `up ${duration(stats.uptime_seconds)}`;
  showCounts();
  for (const title of document.querySelectorAll("th[data-sort]")) {
    const order = ["rate", "dropped"].includes(title.dataset.sort) ? "descending" : "ascending";
    title.setAttribute("aria-sort", title.dataset.sort === sort ? order : "none");
  }
  const matching = isWhole ? rules.length : stats.selection.matching;
  const shown = rules.slice(0, limit);
  const rule = stats.rules.find(({ name }) => name === chosen);
  // After a link to a rule, the rule is scrolled into view.
  if (rule && !shown.includes(rule)) shown.unshift(rule);
  table.show(shown, chosen, history);
  byId("more").hidden = matching <= limit;
  byId("more").firstChild.textContent = things(matching - limit, "more rule");
  const pictured = rule ? [rule] : rules;
  byId("drawn").hidden = (!rule && matching > PICTURED) || pictured.length > PICTURED || pictured.length === 0;
  if (!byId("drawn").hidden) {
    drawPicture(byId("picture"), pictured, (of, end, kind) => linkState(of, end, kind, history));
  }
  showWorkers();
  showPlots(rule);
  actions.fit();
}

// The number of rules in each state; each is a filter.
function showCounts() {
  const { states: counts, total } = stats.selection;
  const group = byId("counts");
  if (group.children.length === 0) {
    for (const state of [null, ...STATES]) {
      const button = element("button");
      button.type = "button";
      button.dataset.state = state ?? "all";
      button.addEventListener("click", () => {
        only = only === state ? null : state;
        limit = ROWS;
        keep();
        select();
      });
      group.append(button);
    }
  }
  for (const button of group.children) {
    const { state } = button.dataset;
    const count = state === "all" ? total : counts[state];
    button.textContent = state === "all" ? things(count, "rule") : `${whole(count)} ${state}`;
    button.className = count === 0 || state === "all" ? "" : state;
    button.hidden = count === 0 && !["all", "down", "degraded", "up"].includes(state) && only !== state
      && document.activeElement !== button;
    button.setAttribute("aria-pressed", String((only ?? "all") === state));
  }
}

function choose(name) {
  chosen = name;
  keep();
  select();
  if (stats) remember().catch(() => {});
}

// Stores the view in the address, so that a reload or a link shows the same.
function keep() {
  const set = { filter: byId("filter").value, state: only, sort: sort === "state" ? "" : sort,
    wall: document.body.classList.contains("wall") ? "1" : "" };
  const query = new URLSearchParams(Object.entries(set).filter(([, value]) => value)).toString();
  const hash = chosen === null ? "" : `#rule=${encodeURIComponent(chosen)}`;
  window.history.replaceState(null, "", `${location.pathname}${query && `?${query}`}${hash}`);
}

// Restores the view from the address.
function follow() {
  const query = new URLSearchParams(location.search);
  byId("filter").value = query.get("filter") ?? "";
  only = STATES.includes(query.get("state")) ? query.get("state") : null;
  sort = Object.hasOwn(ORDERS, query.get("sort") ?? "") ? query.get("sort") : "state";
  wall(query.has("wall"));
  chosen = new URLSearchParams(location.hash.slice(1)).get("rule") || null;
}

// For a wall display: the counts, the rules and the reasons, in large letters.
function wall(is) {
  document.body.classList.toggle("wall", is);
  byId("wall").setAttribute("aria-pressed", String(is));
}

// Announces changes to screen readers; an empty text announces nothing.
function speak(text) {
  if (text !== "") byId("spoken").textContent = text;
}

// Greys the page when no reply has arrived for too long, by this page's clock.
function showAge() {
  const [age, { body }] = [secondsSinceAnswer(), document];
  const isStale = age > STALE_SECONDS && stats !== null;
  byId("stale").hidden = !isStale;
  byId("stale").textContent = isStale ? `last answer ${duration(Math.floor(age))} ago` : "";
  if (isStale !== body.classList.contains("stale")) {
    body.classList.toggle("stale", isStale);
    speak(isStale ? "the daemon does not answer" : "the daemon answers again");
  }
  if (isStale && isLooking) {
    byId("summary").textContent = "the daemon does not answer";
    byId("summary").className = "down";
  }
  if (stats === null) return;
  const { instance, host, selection: { states: counts } } = stats;
  const trouble = isStale ? "?" : TROUBLE.reduce((sum, state) => sum + counts[state], 0);
  document.title = `${trouble === 0 ? "" : `(${trouble}) `}${host} ${instance} · MCR`;
}

function showWorkers() {
  const texts = stats.workers.map(
    (worker) => `${worker.id} on CPU ${worker.cpu}: ${worker.state}, ` +
      `${things(worker.restarts, "restart")}, ${whole(worker.forwarded)} forwarded, ` +
      `${whole(worker.buffer_exhausted)} lost`,
  );
  byId("workers").textContent = texts.length === 0 ? "none needed" : texts.join(" · ");
}

function makePlot(id, title, unit, ...more) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 } };
  const values = (_, ticks) => ticks.map((tick) => scaled(tick, unit).trim());
  const hours = (_, ticks) => ticks.map((tick) => clock(new Date(tick * 1000)));
  const options = {
    title, width: byId(id).clientWidth || 600, height: 170,
    scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, 1) * 1.05] } },
    axes: [{ ...axis, values: hours, space: 80 }, { ...axis, values, size: 74 }],
    series: [{}, { stroke: colour("--accent"), fill: `${colour("--accent")}22`, width: 2 },
      ...more.map((name) => ({ stroke: colour(name), width: 2 }))],
  };
  return new uPlot(options, options.series.map(() => []), byId(id));
}

// Details of the selected rule: the reason for its state, and what its packets reveal.
function showFacts(rule) {
  const facts = [];
  if (rule) {
    const health = rule.health;
    facts.push(["rule", [states.get(rule.name), reason(rule) ?? `${rule.path}: ${rule.path_reason}`]]);
    facts.push(["", words("rule", rule)]);
    if (rule.merge) facts.push(["merge", words("merge", rule.merge)]);
    for (const [kind, list] of [["input", rule.inputs], ["output", rule.outputs]]) {
      for (const end of list) {
        const texts = [...words(kind, end), ...(kind === "input" ? words("line", end) : [])];
        facts.push([kind, texts.length === 0 ? [] : [end.at ?? end.to, ...texts]]);
      }
    }
    if (health) facts.push(["stream", [health.state, health.reason ?? `longest gap in 10 s: ${time(health.gap_seconds_10s)}`]]);
    const rtp = health?.rtp;
    if (rtp) facts.push(["RTP", [...words("rtp", rtp),
      `SSRC ${rtp.ssrc.toString(16).padStart(8, "0")}, ${things(rtp.ssrc_changes, "change")}`]]);
    const ts = health?.ts;
    if (ts) facts.push(["MPEG-TS", words("ts", ts)]);
  }
  for (const stay of rule?.residence ?? []) {
    const below = (bound) => bound === undefined ? "above all bounds" : `below ${time(bound)}`;
    facts.push([`stay, ${stay.path}`, [`half ${below(stay.p50_seconds)}`, `99 % ${below(stay.p99_seconds)}`,
      `${whole(stay.samples)} looked at`]]);
  }
  const parts = facts.filter(([, texts]) => texts.length > 0).flatMap(([title, texts]) =>
    [element("dt", "", title), element("dd", "", texts.join(" · "))]);
  byId("facts").replaceChildren(...parts);
}

function showPlots(rule) {
  byId("selected").textContent = chosen === null ? "All rules" : rule ? chosen : `no rule ${chosen}`;
  showFacts(rule);
  const { times, packets, bits, drops } = history.trail(rule ? chosen : null);
  // Without drops nothing is red.
  plots[0].setData([times, packets, drops.some((rate) => rate > 0) ? drops : drops.map(() => null)]);
  plots[1].setData([times, bits]);
  byId("plots").dataset.since = times[0] ?? "";
}

function makePlots() {
  plots.splice(0).forEach((plot) => plot.destroy());
  plots.push(makePlot("packets", "packets/s received, and in red dropped", "", "--down"), makePlot("bits", "bit/s received", "bit"));
  if (stats) showPlots(stats.rules.find(({ name }) => name === chosen));
}

function showMore() {
  limit += ROWS;
  select();
}

byId("filter").addEventListener("input", () => {
  limit = ROWS;
  keep();
  select();
});
byId("wall").addEventListener("click", () => {
  wall(!document.body.classList.contains("wall"));
  keep();
});
for (const title of document.querySelectorAll("th[data-sort]")) {
  title.addEventListener("click", () => {
    sort = sort === title.dataset.sort ? "state" : title.dataset.sort;
    keep();
    select();
  });
}
byId("more").firstChild.addEventListener("click", showMore);
// Scrolling to the end of the table loads the next rows.
new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && showMore()).observe(byId("more"));
addEventListener("hashchange", () => {
  follow();
  select();
  table.line(chosen)?.scrollIntoView({ block: "nearest" });
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", makePlots);
addEventListener("resize", () => plots.forEach((plot) => {
  plot.setSize({ width: plot.root.parentElement.clientWidth, height: 170 });
}));
follow();
makePlots();
begin(byId("who"), () => {
  actions.sign();
  lookSoon();
});
// A browser runs the timers of a hidden tab once a minute.
addEventListener("visibilitychange", () => {
  if (!document.hidden && !isLooking) lookSoon();
});
setInterval(showAge, LOOK_MS / 2);
