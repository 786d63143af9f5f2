// The fleet as this relay sees it: its problems, relays and shares.

import { ask } from "./ask.js";
import { button, labelled, open } from "./dialog.js";
import { edit } from "./editor.js";
import { review } from "./review.js";
import { acts, may, send } from "./session.js";
import { duration, element, tableOf, things, whole } from "./words.js";

const SHOWN = 100;
const RELAYS = { up: "up", drained: "degraded", unfit: "degraded", unknown: "degraded", silent: "down", fenced: "down" };
const SHARES = { open: "up", elsewhere: "up", handing: "degraded", unknown: "degraded", shut: "down", vacant: "down" };

// Hidden on a relay of no fleet. `done` is called after an action.
export async function lookAtFleet(section, name, done) {
  const fleet = name === undefined ? null : await ask("/v1/fleet").catch(() => null);
  section.hidden = fleet === null;
  if (fleet !== null) show(section, fleet, done);
}

function show(section, fleet, done) {
  const now = Date.now();
  const ago = (at) => (at === undefined ? "" : duration(Math.max(0, now - at) / 1000));
  const last = fleet.etcd.last_answer_ms === undefined ? "" : `; last answered ${duration(fleet.etcd.last_answer_ms / 1000)} ago`;
  const etcd = fleet.etcd.reachable ? "etcd answers" : `etcd cannot be used: ${fleet.etcd.reason ?? "no reason given"}${last}`;
  const about = element("p", fleet.etcd.reachable ? "" : "down",
    `this is ${fleet.relay}; ${things(fleet.rules, "rule")} of generation ${fleet.generation}; ${etcd}`);
  const problems = element("ul");
  problems.append(...fleet.problems.slice(0, SHOWN).map((problem) => element("li", "down", problem)));
  const relays = fleet.relays.map((relay) =>
    [page(relay, fleet.relay), [relay.state, RELAYS[relay.state]], ago(relay.since_ms), whole(relay.shares), whole(relay.rules),
      relay.counters === undefined ? "" : whole(relay.counters.pps)]);
  const shares = fleet.shares.slice(0, SHOWN).map((share) =>
    [share.name, share.relay ?? "-", [share.state, SHARES[share.state]], ago(share.since_ms), share.standby ?? "-",
      share.problem ?? share.why]);
  // The buttons are reused, so that the focus stays.
  const tools = section.querySelector(".tools") ?? element("p", "tools");
  tools.hidden = !may("operate");
  if (tools.children.length === 0) tools.append(...buttons(done));
  current = fleet;
  const { activeElement } = document;
  const focused = activeElement.matches("a") && section.contains(activeElement) ? activeElement.href : null;
  if (tools.parentNode !== section) section.replaceChildren(tools);
  for (const one of [...section.children]) if (one !== tools) one.remove();
  tools.lastChild.hidden = !may("change");
  tools.before(element("h2", "", `Fleet ${fleet.fleet}`), about, problems);
  tools.after(tableOf(["Relay", "State", "Since", "Shares", "Rules", "Packets/s"], relays),
    tableOf(["Share", "Holder", "State", "Since", "Standby", "What"], shares));
  // Links are recreated, and the focus is restored.
  [...section.querySelectorAll("a")].find(({ href }) => href === focused)?.focus({ preventScroll: true });
}

// The last status of the fleet.
let current = null;

// The most likely address of a relay's page: the one that other relays use, with the port of this page.
function page({ name, peer }, own) {
  const host = (peer ?? "").replace(/:\d+$/, "");
  if (!acts || name === own || !/^[0-9A-Za-z.:[\]-]+$/.test(host)) return name;
  const link = element("a", "", name);
  link.href = `${location.protocol}//${host}${location.port && `:${location.port}`}/`;
  return link;
}

const FENCE = "Fencing ends the relay's session at once. Fence only a relay that is known to be dead: one that still "
  + "forwards goes on until its time is over, and receivers may get packets twice.";

function buttons(done) {
  return [button("Relays …", () => steer(done)), button("Fleet rules …", fleetRules)];
}

// An action on a relay or a share.
function steer(done) {
  const shown = open("Relays of the fleet");
  const choice = (names) => {
    const made = element("select");
    made.append(...names.map((name) => element("option", "", name)));
    return made;
  };
  const relay = choice(current.relays.map(({ name }) => name));
  const share = choice(current.shares.map(({ name }) => name));
  shown.body.append(labelled("Relay", relay));
  const act = (text, verb, warns, body) => shown.button(`${text} …`, async () => {
    const plan = { method: "POST", path: `/v1/fleet/${verb}`, body: () => body(), verb: text, warns: warns() };
    if (await review(`${text} ${relay.value}`, plan)) {
      shown.close();
      done();
    }
  });
  const name = () => ({ relay: relay.value });
  act("Drain", "drain", () => ["It gives away what it forwards, and takes nothing until it is undrained."], name);
  act("Undrain", "undrain", () => ["It may take shares again; none comes back by itself."], name);
  if (may("change")) {
    act("Fence", "fence", () => [FENCE], name);
    shown.body.append(labelled("Share", share, "to be moved to that relay"));
    act("Move", "move", () => [`${share.value} goes to ${relay.value}.`], () => ({ rules: [share.value], relay: relay.value }));
  }
  shown.button("Close", shown.close);
  relay.focus();
}

async function fleetRules() {
  const told = await ask("/v1/fleet/rules");
  const plan = (rules) => ({
    method: "PUT", path: "/v1/fleet/rules", generation: told.generation, dry: true,
    body: (generation) => ({ generation, rules }),
    latest: async () => (await ask("/v1/fleet/rules")).generation,
  });
  await edit("Rules of the fleet", { rules: told.rules, plan, isFleets: true });
}
