// The dialog of every change: its effect, its terms, its execution, and its undo unless it is confirmed. A
// change is for one generation: a conflict is shown, and no input is lost.

import { ask } from "./ask.js";
import { input, labelled, open } from "./dialog.js";
import { may, send } from "./session.js";
import { element, things } from "./words.js";

const SECONDS = 60;

// `plan`: method, path, body(generation), generation; dry: whether the daemon supports a dry run; look():
// returns the effect, if that is requested otherwise; terms: whether it can be undone; warns: warnings.
// Returns true if the change was made.
export function review(title, plan) {
  return new Promise((resolve) => {
    const shown = open(title, { kind: "review" });
    const { body } = shown;
    const said = element("div", "change");
    said.setAttribute("aria-live", "polite");
    body.append(...(plan.warns ?? []).map((text) => element("p", "degraded", text)), said);
    const [back, save, why] = [input("checkbox", true), input("checkbox", false), input("text")];
    const seconds = input("number", String(SECONDS));
    Object.assign(seconds, { min: 1, max: 3600 });
    Object.assign(why, { maxLength: 250 });
    if (plan.terms) {
      body.append(labelled("Take back unless confirmed", back), labelled("within seconds", seconds));
      if (may("change")) body.append(labelled("Save in the configuration", save, "else it lasts until the daemon stops"));
    }
    body.append(labelled("Why", why, "for the log of changes"));
    let [done, generation] = [false, plan.generation];
    const again = shown.button("Look again at what runs now", async () => {
      generation = await latest();
      again.hidden = true;
      await look();
      apply.hidden = false;
      apply.focus();
    });
    again.hidden = true;
    const latest = plan.latest ?? (async () => (await ask("/v1/status")).generation);
    const conflicted = async (error) => {
      // The other cause is a change that waits to be confirmed.
      const isOld = error.status === 409 && generation !== undefined && (await latest().catch(() => generation)) !== generation;
      again.hidden = !isOld;
      apply.hidden = isOld;
      if (isOld) again.focus();
      throw new Error(isOld ? `Somebody was faster: ${error.message}. What you wrote is kept.` : error.message);
    };
    const look = async () => {
      said.replaceChildren(element("p", "", "asking the daemon …"));
      const query = { dry_run: true };
      try {
        const change = plan.look ? await plan.look()
          : plan.dry ? await send(plan.method, plan.path, { body: plan.body(generation), query, ...match() }) : null;
        said.replaceChildren(...(change === null ? [] : differences(change)));
      } catch (error) {
        said.replaceChildren();
        await conflicted(error);
      }
    };
    const match = () => (plan.matches ? { generation } : {});
    const apply = shown.button(plan.verb ?? "Apply", async () => {
      const query = {};
      if (plan.terms && back.checked) query.confirm = `${seconds.value}s`;
      if (plan.terms && save.checked) query.save = true;
      const asked = { body: plan.body?.(generation), query, message: why.value, ...match() };
      await send(plan.method, plan.path, asked).catch(conflicted);
      done = true;
      shown.close();
    });
    apply.className = "main";
    shown.button("Cancel", shown.close);
    shown.dialog.addEventListener("close", () => resolve(done));
    apply.focus();
    look().catch((error) => shown.say(error.message));
  });
}

// The effect of a change, line by line.
export function differences(change) {
  const list = element("ul", "diff");
  const add = (kind, text) => list.append(element("li", kind, text));
  for (const name of change.added) add("come", `+ rule ${name}`);
  for (const name of change.removed) add("gone", `− rule ${name}`);
  const told = new Map((change.differences ?? []).map((one) => [one.rule, one]));
  for (const name of change.changed) {
    add("", `rule ${name}`);
    for (const part of told.get(name)?.removed ?? []) add("gone", `− ${part}`);
    for (const part of told.get(name)?.added ?? []) add("come", `+ ${part}`);
  }
  for (const text of change.settings ?? []) add("", text);
  for (const { rule, path, reason } of change.placements ?? []) add("placed", `${rule} runs on ${path}: ${reason}`);
  for (const text of change.warnings ?? []) add("degraded", `warning: ${text}`);
  if (list.children.length === 0) add("", "nothing changes");
  return [list, element("p", "faint", `${things(change.unchanged, "rule")} unchanged`)];
}

// A transaction: removes and adds rules as one step.
export function transaction(generation, add, remove) {
  const body = (now) => ({ generation: now, add, remove });
  return { method: "POST", path: "/v1/transaction", body, generation, dry: true, terms: true };
}

// A rollback: to a generation, or to the last different rules.
export function rollback(generation, of) {
  const body = () => (of === undefined ? {} : { generation: of });
  return { method: "POST", path: "/v1/rollback", body, generation, dry: true, terms: true, matches: true };
}
