// The fleet as this relay sees it: what is wrong, the relays, the shares.

import { ask } from "./ask.js";
import { duration, element, plural, whole } from "./words.js";

const SHOWN = 100;
const RELAYS = { up: "up", drained: "degraded", unfit: "degraded", silent: "down", fenced: "down" };
const SHARES = { open: "up", elsewhere: "up", handing: "degraded", shut: "down", vacant: "down" };

// Of the relay of no fleet there is none.
export async function lookAtFleet(section, name) {
  const fleet = name === undefined ? null : await ask("/v1/fleet").catch(() => null);
  section.hidden = fleet === null;
  if (fleet !== null) show(section, fleet);
}

function show(section, fleet) {
  const now = Date.now();
  const ago = (at) => (at === undefined ? "" : duration(Math.max(0, now - at) / 1000));
  const etcd = fleet.etcd.reachable ? "etcd answers" : `etcd cannot be used: ${fleet.etcd.reason ?? "no reason given"}`;
  const about = element("p", fleet.etcd.reachable ? "" : "down",
    `this is ${fleet.relay}; ${whole(fleet.rules)} rule${plural(fleet.rules)} of generation ${fleet.generation}; ${etcd}`);
  const problems = element("ul");
  problems.append(...fleet.problems.slice(0, SHOWN).map((problem) => element("li", "down", problem)));
  const relays = fleet.relays.map((relay) =>
    [relay.name, [relay.state, RELAYS[relay.state]], ago(relay.since_ms), whole(relay.shares), whole(relay.rules),
      relay.counters === undefined ? "" : whole(relay.counters.pps)]);
  const shares = fleet.shares.slice(0, SHOWN).map((share) =>
    [share.name, share.relay ?? "-", [share.state, SHARES[share.state]], ago(share.since_ms), share.standby ?? "-",
      share.problem ?? share.why]);
  section.replaceChildren(
    element("h2", "", `Fleet ${fleet.fleet}`), about, problems,
    tableOf(["Relay", "State", "Since", "Shares", "Rules", "Packets/s"], relays),
    tableOf(["Share", "Holder", "State", "Since", "Standby", "What"], shares),
  );
}

function tableOf(titles, rows) {
  const table = element("table");
  const head = element("tr");
  head.append(...titles.map((title) => element("th", "", title)));
  const lines = rows.map((cells) => {
    const line = element("tr");
    line.append(...cells.map((cell) => (Array.isArray(cell) ? element("td", cell[1], cell[0]) : element("td", "", cell))));
    return line;
  });
  table.append(head, ...lines);
  return table;
}
