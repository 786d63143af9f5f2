// The editor of rules: in a form, or as TOML; the daemon checks either while one types. The input stays while
// the daemon is unreachable, after a conflict, or when the session ends.

import { ask } from "./ask.js";
import { complete } from "./complete.js";
import { button, open } from "./dialog.js";
import { Form } from "./form.js";
import { review, transaction } from "./review.js";
import { send } from "./session.js";
import { element } from "./words.js";

const TYPED_MS = 300;

let schema = null;

// Opens the editor until it is closed; returns true if the change was made. `remove` are the rules that the
// written ones replace. With `plan`, the written ones are all rules of a fleet.
export async function edit(title, { rules, remove = [], generation, text, plan, isFleets = false }) {
  schema ??= await ask("/v1/schema");
  const began = text ?? (await send("POST", "/v1/check", { body: { rules, fleet: isFleets } })).toml;
  const written = () => (form ? { rules: [form.value()] } : { toml: area.value });
  const start = { form: null, text: began };
  const isDirty = () => JSON.stringify(written()) !== JSON.stringify(form ? start.form : { toml: start.text });
  const shown = open(title, { kind: "editor", isDirty });
  const area = element("textarea", "toml");
  Object.assign(area, { value: began, rows: 18, spellcheck: false, ariaLabel: "Rules as TOML" });
  const offers = complete(area, schema);
  const wrong = element("ul", "wrong down");
  wrong.setAttribute("aria-live", "polite");
  const place = element("div");
  shown.body.append(place, wrong);
  let [form, valid, timer, asked, done] = [null, null, 0, 0, false];
  const turn = (rule) => {
    form = rule === undefined ? null : new Form(schema, rule, { isFleets });
    place.replaceChildren(...(form ? [form.element] : [area, offers]));
    other.textContent = form ? "As text" : "As a form";
    place.querySelector("input, textarea").focus();
  };
  const check = async () => {
    const mine = (asked += 1);
    const told = await send("POST", "/v1/check", { body: { ...written(), fleet: isFleets } });
    // A late reply does not apply to newer input.
    if (mine !== asked) return null;
    const rest = form ? form.show(told.problems) : told.problems;
    const at = (problem) => (form || !problem.line ? "" : `line ${problem.line}: `);
    wrong.replaceChildren(...rest.map((problem) => element("li", "", at(problem) + problem.message)));
    valid = told.problems.length === 0 ? told : null;
    return told;
  };
  shown.dialog.addEventListener("input", () => {
    valid = null;
    asked += 1;
    clearTimeout(timer);
    timer = setTimeout(() => check().catch((error) => shown.say(error.message)), TYPED_MS);
  });
  const other = button("", async () => {
    const told = await check();
    if (form) {
      area.value = told.toml;
      turn();
    } else if (told.problems.length === 0 && told.rules.length === 1) turn(told.rules[0]);
    else throw new Error("a form shows one rule, without problems");
  }, shown.say);
  if (!isFleets) shown.add(other);
  const next = shown.button("Review …", async () => {
    clearTimeout(timer);
    const told = await check();
    if (valid === null) {
      shown.dialog.querySelector("[aria-invalid=true], textarea")?.focus();
      throw new Error("something is wrong yet; it is told beside it");
    }
    const made = plan ? plan(told.rules) : transaction(generation, told.rules, remove);
    done = await review(`${title}: review`, made);
    if (done) shown.close();
  });
  next.className = "main";
  shown.button("Cancel", () => {
    if (isDirty()) shown.dialog.requestClose?.();
    else shown.close();
  });
  const isOne = rules?.length === 1 && text === undefined && !isFleets;
  turn(isOne ? rules[0] : undefined);
  start.form = form ? written() : null;
  return new Promise((resolve) => {
    shown.dialog.addEventListener("close", () => resolve(done));
  });
}
