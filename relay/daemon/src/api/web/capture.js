// Multicast that arrives at the relay, also without a rule, and a short capture of a rule. Both run in the
// daemon for a time, and end when the dialog is closed.

import { ask } from "./ask.js";
import { button, input, labelled, open } from "./dialog.js";
import { edit } from "./editor.js";
import { may, send } from "./session.js";
import { element, scaled, tableOf, whole } from "./words.js";

const MOST = 60;
// How much longer than the capture the reply may take.
const MORE_MS = 30_000;

// A dialog for an action of some seconds. `run(query, options)` does it, `fields` are further inputs by the
// name of the query.
function forSeconds(title, kind, verb, fields, run) {
  const shown = open(title, { kind });
  const time = input("number", String(kind === "capture" ? 10 : 5));
  Object.assign(time, { min: 1, max: MOST, step: "any" });
  const said = element("div");
  said.setAttribute("role", "status");
  shown.body.append(labelled("Seconds", time, `${MOST} at most`), ...fields.map(([, ...field]) => labelled(...field)), said);
  const stop = new AbortController();
  shown.dialog.addEventListener("close", () => stop.abort());
  shown.button(verb, async () => {
    const asked = fields.map(([name, , field]) => [name, field.value.trim()]).filter(([, value]) => value !== "");
    said.replaceChildren(element("p", "", `for ${time.value} s …`));
    try {
      const options = { limit: time.value * 1000 + MORE_MS, stop: stop.signal };
      said.replaceChildren(...await run({ seconds: time.value, ...Object.fromEntries(asked) }, options));
    } catch (error) {
      said.replaceChildren();
      throw error;
    }
  }).className = "main";
  shown.button("Close", shown.close);
  time.focus();
  return shown;
}

export function discover() {
  const fields = [
    ["interfaces", "Interfaces", input("text"), "those that are up where it is empty; several with commas between"],
    ["join", "Ask for", input("text"), "groups, where a switch sends only what was asked for; several with commas between"],
  ];
  const shown = forSeconds("What comes here", "discover", "Listen", fields, async (query, options) => {
    const { streams, not_listed: more, interfaces } = await send("GET", "/v1/discover", { query, ...options });
    const lines = streams.map((one) => [
      one.vlan === null ? one.interface : `${one.interface} vlan ${one.vlan}`, one.source, one.group, String(one.port),
      whole(one.packets_per_second), scaled(one.bits_per_second, "bit"), one.content, one.joined ? "yes" : "no",
      one.rule ?? (may("change") ? relay(shown, one) : "-")]);
    const titles = ["Interface", "Source", "Group", "Port", "Packets/s", "Bit/s", "Carries", "Joined", "Rule"];
    const missed = interfaces.filter((one) => one.missed > 0).map((one) => `${one.name}: ${whole(one.missed)} packets came too fast`);
    if (more > 0) missed.push(`${whole(more)} packets of further streams`);
    const told = missed.map((text) => element("p", "degraded", text));
    if (lines.length === 0) return [element("p", "", "no multicast arrived"), ...told];
    const place = element("div", "wide");
    Object.assign(place, { tabIndex: 0, ariaLabel: "What came", role: "group" });
    place.append(tableOf(titles, lines));
    return [place, ...told];
  });
}

// Opens the form of a rule for a stream.
function relay(shown, { input: at, group, port }) {
  const made = button("Relay this …", async () => {
    const { generation } = await ask("/v1/status");
    const rule = { name: `${group}-${port}`, inputs: [at], outputs: [] };
    if (await edit("Add a rule", { rules: [rule], generation })) shown.close();
  }, shown.say);
  made.ariaLabel = `Relay this … ${at}`;
  return made;
}

export function capture(rule) {
  const output = element("select");
  const option = (text, value) => Object.assign(element("option", "", text), { value });
  output.append(option("inputs and outputs", ""), ...rule.outputs.map((to, at) => option(`output ${to.to ?? to}`, String(at + 1))));
  const fields = [
    ["output", "What", output],
    ["filter", "Filter", input("text"), "as src 10.0.0.5 and dst net 239.1.1.0/28; all packets where it is empty"],
  ];
  let url = null;
  const shown = forSeconds(`Capture ${rule.name}`, "capture", "Capture", fields, async (query, options) => {
    const path = `/v1/rules/${encodeURIComponent(rule.name)}/tap`;
    const file = await send("GET", path, { query, ...options, read: (answer) => answer.blob() });
    if (url !== null) URL.revokeObjectURL(url);
    url = URL.createObjectURL(file);
    const link = Object.assign(element("a", "", `${rule.name}.pcapng`), { href: url, download: `${rule.name}.pcapng` });
    link.click();
    const line = element("p", "", `${whole(file.size)} bytes: `);
    line.append(link);
    return [line];
  });
  shown.dialog.addEventListener("close", () => url !== null && URL.revokeObjectURL(url));
}
