// The table of rules: worst first, as many rows as requested, and below the selected rule its inputs and
// outputs with their counts.

import { droppedBy, isLate, isUnheard, judge, reason } from "./state.js";
import { drops, duration, element, scaled, whole, words } from "./words.js";

const COLUMNS = ["name", "state", "path", "number now", "number long", "number bits", "number received",
  "number sent", "number dropped", "why"];

// The most addresses of an output that have a line.
const ADDRESSES = 64;

export class Table {
  // `choose(name)` is called with the clicked rule.
  constructor(body, choose) {
    this.body = body;
    this.choose = choose;
    this.rows = new Map();
    this.detail = element("tr", "detail");
    this.detail.insertCell().colSpan = COLUMNS.length;
    // The actions on several rules at once, if the page may make changes.
    this.picked = new Set();
    this.picks = false;
    this.onpick = () => {};
  }

  // Makes rows pickable, or not.
  pickable(is) {
    if (this.picks === is) return;
    this.picks = is;
    this.picked.clear();
    for (const row of this.rows.values()) this.box(row);
  }

  pick(name, is) {
    if (is) this.picked.add(name);
    else this.picked.delete(name);
    const row = this.rows.get(name);
    if (row?.pick) row.pick.checked = is;
    this.onpick();
  }

  // Picks all shown rows; none if some are picked.
  pickShown() {
    const some = this.picked.size > 0;
    for (const name of some ? [...this.picked] : this.rows.keys()) this.pick(name, !some);
  }

  box(row) {
    row.pick?.remove();
    row.pick = null;
    if (!this.picks) return;
    const name = row.line.dataset.rule;
    row.pick = element("input");
    Object.assign(row.pick, { type: "checkbox", checked: this.picked.has(name), ariaLabel: `pick ${name}` });
    row.pick.addEventListener("change", () => this.pick(name, row.pick.checked));
    row.cells[0].prepend(row.pick);
  }

  show(rules, chosen, history) {
    const lines = [];
    const shown = new Set();
    for (const rule of rules) {
      const row = this.rows.get(rule.name) ?? this.make(rule.name);
      shown.add(rule.name);
      fill(row, rule, rule.name === chosen);
      lines.push(row.line);
      if (rule.name === chosen) {
        this.detail.cells[0].replaceChildren(ends(rule, history));
        lines.push(this.detail);
      }
    }
    // Rows are moved only if the order differs.
    const { children } = this.body;
    const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    const kind = focused?.type === "checkbox" ? "input" : "a";
    const place = [...children].indexOf(focused?.closest("tr"));
    lines.forEach((line, at) => {
      if (children[at] !== line) this.body.insertBefore(line, children[at] ?? null);
    });
    while (children.length > lines.length) this.body.lastChild.remove();
    // A moved line has lost the focus and gets it back; that of a removed line goes to the next.
    if (focused !== null && document.activeElement !== focused) {
      const next = lines.length === 0 ? null : lines[Math.min(place, lines.length - 1)].querySelector(kind);
      (focused.isConnected ? focused : next)?.focus({ preventScroll: true });
    }
    for (const name of this.rows.keys()) if (!shown.has(name)) this.rows.delete(name);
  }

  line(name) {
    return this.rows.get(name)?.line;
  }

  make(name) {
    const line = element("tr");
    const cells = COLUMNS.map((kind) => {
      const cell = line.insertCell();
      cell.className = kind;
      return cell;
    });
    const link = element("a", "", name);
    link.href = `#rule=${encodeURIComponent(name)}`;
    cells[0].append(link);
    line.dataset.rule = name;
    line.addEventListener("click", (event) => {
      // Can be opened in a new tab like any link.
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.target.type === "checkbox") return;
      event.preventDefault();
      this.choose(name);
    });
    const row = { line, cells, link, pick: null };
    this.rows.set(name, row);
    this.box(row);
    return row;
  }
}

function fill({ line, cells, link }, rule, isChosen) {
  const state = judge(rule);
  const { packets_1s: now, packets_10s: long, bits_1s: bits } = rule.rates;
  const { reasons, total } = droppedBy(rule);
  const sent = rule.outputs.reduce((all, output) => all + output.sent.packets, 0);
  const why = reason(rule);
  const texts = [
    rule.name, state, rule.path, whole(now), whole(long), scaled(bits, "bit"), whole(rule.received.packets),
    whole(sent), whole(total), [why, drops(reasons)].filter(Boolean).join("; "),
  ];
  texts.forEach((text, place) => {
    if (place > 0 && cells[place].textContent !== text) cells[place].textContent = text;
  });
  link.setAttribute("aria-expanded", String(isChosen));
  cells[1].className = `state ${state}`;
  cells[9].title = texts[9];
  line.title = why ?? rule.path_reason;
  const shade = { up: rule.outputs.some(isUnheard) ? "amber" : "", idle: "", disabled: "pale", degraded: "amber", waiting: isLate(rule) ? "amber" : "" }[state] ?? "red";
  line.className = [shade, isChosen ? "chosen" : ""].join(" ").trim();
}

// The packets of each input and output.
function ends(rule, history) {
  const table = element("table");
  const head = table.createTHead().insertRow();
  for (const [title, kind] of [["At", ""], ["State", ""], ["Packets/s", "number"], ["Bit/s", "number"],
    ["Packets", "number"], ["Last", "number age"], ["Dropped", "why"]]) head.append(element("th", kind, title));
  const body = table.createTBody();
  const add = (at, state, rate, counted, age, note, more = "") => {
    const row = body.insertRow();
    // Single addresses of several have neither rate nor time.
    const last = age === undefined ? rate && "never" : `${duration(age)} ago`;
    const texts = [at, state, rate && whole(rate.packets), rate && scaled(rate.bits, "bit"), whole(counted.packets),
      last, note];
    texts.forEach((text, place) => {
      const cell = row.insertCell();
      cell.textContent = text;
      if (place === 6) cell.title = more;
      cell.className = ["", `state ${state}`, "number", "number", "number", "number age", "why"][place];
    });
  };
  rule.inputs.forEach((input, index) => {
    const state = rule.state === "disabled" ? "disabled" : input.joined ? "joined" : "down";
    add(`← ${input.at}`, state, history.came(rule.name, index), input.received, input.last_packet_seconds,
      [input.reason, input.trouble, input.hook && `at ${input.hook}`, words("line", input).join(", "),
        drops(Object.entries(rule.dropped))].filter(Boolean).join("; "), input.hook_reason);
  });
  rule.outputs.forEach((output, index) => {
    const dropped = Object.entries(output.dropped).filter(([, count]) => count > 0);
    add(`→ ${output.to}`, output.state, history.sent(rule.name, index), output.sent, output.last_packet_seconds,
      [output.reason ?? output.name_error ?? output.unheard, output.left_out && `${whole(output.left_out)} more than max`, drops(dropped)]
        .filter(Boolean).join("; "));
    const { addresses = [] } = output;
    for (const to of addresses.slice(0, ADDRESSES)) {
      add(`↳ ${to.address}`, to.state, null, to.sent, undefined,
        [to.reason, drops(Object.entries(to.dropped))].filter(Boolean).join("; "));
    }
    const more = addresses.slice(ADDRESSES);
    if (more.length > 0) {
      const packets = more.reduce((sum, to) => sum + to.sent.packets, 0);
      add(`↳ ${whole(more.length)} more`, "", null, { packets }, undefined, "");
    }
  });
  return table;
}
