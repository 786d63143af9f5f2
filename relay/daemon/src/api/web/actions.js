// The actions that the role permits: on the picked rules, or the shown one, and on the change that waits
// to be confirmed.

import { ask } from "./ask.js";
import { capture, discover } from "./capture.js";
import { button, labelled, open } from "./dialog.js";
import { showEarlier } from "./earlier.js";
import { edit } from "./editor.js";
import { importRules } from "./import.js";
import { showLog } from "./log.js";
import { review, rollback, transaction } from "./review.js";
import { may, me, send } from "./session.js";
import { element, things, whole } from "./words.js";

const EMPTY = { name: "", inputs: [], outputs: [] };

export class Actions {
  #bar = document.getElementById("actions");
  #waiting = document.getElementById("pending");
  #buttons = [];
  #pending = null;

  // `chosen()` is the shown rule; `done` is called after an action.
  constructor(table, chosen, done) {
    Object.assign(this, { table, chosen, done, unsaved: 0 });
    const said = element("p", "said down");
    said.setAttribute("role", "alert");
    const add = (text, role, wants, act) => {
      const made = button(text, async () => {
        if (await act()) {
          for (const name of [...table.picked]) table.pick(name, false);
          done();
        }
      }, (wrong) => (said.textContent = wrong));
      this.#buttons.push({ made, text, role, wants });
    };
    add("Add rule …", "change", "", () => this.#write("Add a rule", [], () => [EMPTY]));
    add("Import …", "change", "", importRules);
    add("Discover …", "operate", "", discover);
    add("Change …", "change", "some", () => this.#write("Change", this.#names(), (rules) => rules));
    add("Copy …", "change", "one", () => this.#write("Copy", this.#names(), (rules) => [{ ...rules[0], name: `${rules[0].name}-copy` }], true));
    add("Enable …", "operate", "some", () => this.#enable(true));
    add("Disable …", "operate", "some", () => this.#enable(false));
    add("Remove …", "change", "some", () => this.#remove());
    add("Acknowledge …", "operate", "some", () => this.#acknowledge());
    add("Switch leg …", "operate", "legs", () => this.#switch());
    add("Capture …", "operate", "one", async () => capture((await this.#read(this.#names())).rules[0]));
    add("As it was …", "view", "one", () => showEarlier(this.#names()[0]));
    add("Pick shown", "operate", "", () => table.pickShown());
    add("Log …", "view", "", showLog);
    add("Undo …", "change", "", async () => review("Undo: back to the rules before", rollback((await ask("/v1/status")).generation)));
    add("Save …", "change", "unsaved", () => this.#save());
    this.#bar.append(...this.#buttons.map(({ made }) => made), said);
    // Arrow keys move along it too.
    this.#bar.addEventListener("keydown", ({ key }) => {
      const there = this.#buttons.map(({ made }) => made).filter((made) => !made.hidden && !made.disabled);
      const at = there.indexOf(document.activeElement);
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[key];
      if (at >= 0 && to !== undefined) there.at(to % there.length).focus();
    });
    table.onpick = () => this.fit();
    setInterval(() => this.#count(), 500);
  }

  // Another client signed in, or signed out.
  sign() {
    this.#bar.hidden = me.client === null;
    this.table.pickable(may("operate"));
    this.fit();
    if (me.client === null) this.#wait(null);
  }

  show({ pending = null, unsaved = 0, generation }) {
    Object.assign(this, { unsaved, generation });
    if (me.client === null) return;
    this.fit();
    this.#wait(pending);
  }

  #names() {
    const { picked } = this.table;
    return picked.size > 0 ? [...picked] : [this.chosen()?.name].filter(Boolean);
  }

  // Shows the actions that are possible now.
  fit() {
    const names = this.#names();
    const rule = this.chosen();
    const legs = names.length === 1 && rule?.name === names[0] && rule.inputs.some((one) => one.active !== undefined);
    const can = { "": true, some: names.length > 0, one: names.length === 1, legs, unsaved: this.unsaved > 0 };
    for (const { made, text, role, wants } of this.#buttons) {
      made.hidden = !may(role);
      made.disabled = !can[wants] && document.activeElement !== made;
      if (text === "Pick shown") {
        made.textContent = this.table.picked.size > 0 ? "Pick none" : text;
        continue;
      }
      const many = wants === "some" && names.length > 1 ? text.replace(" …", ` ${whole(names.length)} …`) : text;
      if (made.textContent !== many) made.textContent = many;
    }
  }

  // The rules of these names, and the least generation they belong to.
  async #read(names) {
    const { generation } = await ask("/v1/status");
    const rules = await Promise.all(names.map((name) => ask(`/v1/rules/${encodeURIComponent(name)}`)));
    return { generation, rules };
  }

  async #write(title, names, made, isCopy = false) {
    const { generation, rules } = await this.#read(names);
    const of = names.length === 1 ? ` ${names[0]}` : "";
    return edit(`${title}${of}`, { rules: made(rules), remove: isCopy ? [] : names, generation });
  }

  async #enable(enabled) {
    const names = this.#names();
    const title = `${enabled ? "Enable" : "Disable"} ${names.join(", ")}`;
    if (may("change")) {
      const { generation, rules } = await this.#read(names);
      return review(title, transaction(generation, rules.map((rule) => ({ ...rule, enabled })), names));
    }
    return review(title, { method: "PUT", path: "/v1/enabled", body: () => ({ rules: names, enabled }), terms: true });
  }

  async #remove() {
    const names = this.#names();
    const { generation } = await ask("/v1/status");
    return review(`Remove ${names.join(", ")}`, transaction(generation, [], names));
  }

  // Acknowledges the trouble of rules, or withdraws that.
  async #acknowledge() {
    const names = this.#names();
    const shown = open(`Acknowledge the trouble of ${names.join(", ")}`);
    const why = element("input");
    why.maxLength = 1000;
    shown.body.append(labelled("Message", why, "others are told who sees to it, until it is over"));
    let done = false;
    const say = (acknowledged) => async () => {
      for (const name of names) {
        const message = acknowledged && why.value !== "" ? why.value : undefined;
        await send("PUT", `/v1/rules/${encodeURIComponent(name)}/acknowledged`, { body: { acknowledged }, message });
      }
      done = true;
      shown.close();
    };
    shown.button("Acknowledge", say(true)).className = "main";
    shown.button("Take it back", say(false));
    shown.button("Cancel", shown.close);
    why.focus();
    return new Promise((resolve) => {
      shown.dialog.addEventListener("close", () => resolve(done));
    });
  }

  async #switch() {
    const rule = this.chosen();
    const shown = open(`Switch ${rule.name} to another leg`);
    const legs = element("select");
    legs.append(...rule.inputs.map(({ at, active }) => {
      const leg = element("option", "", active ? `${at} (relayed now)` : at);
      leg.value = at;
      return leg;
    }));
    legs.value = rule.inputs.find(({ active }) => !active)?.at ?? legs.value;
    shown.body.append(labelled("Leg", legs, "it is relayed from then on, as long as it delivers; the others stand by"));
    let done = false;
    shown.button("Switch", async () => {
      await send("PUT", `/v1/rules/${encodeURIComponent(rule.name)}/active`, { body: { input: legs.value } });
      done = true;
      shown.close();
    }).className = "main";
    shown.button("Cancel", shown.close);
    legs.focus();
    return new Promise((resolve) => {
      shown.dialog.addEventListener("close", () => resolve(done));
    });
  }

  #save() {
    const look = () => ask("/v1/unsaved");
    return review("Save what runs in the configuration", { method: "POST", path: "/v1/save", verb: "Save", look });
  }

  // Shows the waiting change until it is confirmed or undone.
  #wait(pending) {
    const before = this.#pending;
    this.#pending = pending === null ? null : { ...pending, ends: performance.now() + pending.seconds * 1000 };
    this.#waiting.hidden = pending === null;
    if (pending === null) return;
    if (before?.generation !== pending.generation) {
      const by = pending.by.user ?? pending.by.name ?? pending.by.via;
      const text = element("p", "", `The change to generation ${pending.generation} by ${by} is taken back in `);
      text.setAttribute("role", "status");
      this.left = element("strong");
      const said = element("span", "down");
      const say = (wrong) => (said.textContent = wrong);
      const act = (name, path, body) => button(name, async () => {
        // For this generation only: a browser repeats unanswered requests, and two undos would cancel out.
        await send("POST", path, { body, generation: body && this.generation });
        this.done();
      }, say);
      const line = element("div", "line");
      const [keep, back] = [act("Keep it", "/v1/confirm"), act("Take it back now", "/v1/rollback", {})];
      keep.className = "main";
      [keep.hidden, back.hidden] = [!may("operate"), !may("change")];
      line.append(text, this.left, keep, back, said);
      this.#waiting.replaceChildren(line);
    }
    this.#count();
  }

  #count() {
    if (this.#pending === null || this.left === undefined) return;
    const left = Math.max(0, Math.ceil((this.#pending.ends - performance.now()) / 1000));
    this.left.textContent = things(left, "second");
  }
}
