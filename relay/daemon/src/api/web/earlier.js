// An earlier version of a rule: its changes since, and the return to it.

import { ask } from "./ask.js";
import { labelled, open } from "./dialog.js";
import { review, transaction } from "./review.js";
import { may, send } from "./session.js";
import { clock, element } from "./words.js";

const DAY_MS = 86_400_000;

// Returns true if the rule was restored.
export async function showEarlier(name) {
  const [kept, { generation }] = await Promise.all([ask("/v1/generations"), ask("/v1/status")]);
  const before = kept.filter((record) => record.generation !== generation).reverse();
  if (before.length === 0) throw new Error("no rules of before are kept");
  const shown = open(`${name} as it was`, { kind: "earlier" });
  const choice = element("select");
  choice.append(...before.map((record) => {
    const who = record.by.user ?? record.by.name ?? record.by.via;
    const why = record.message ? `: ${record.message}` : "";
    const text = `${clock(new Date(record.at_ms))}, generation ${record.generation} by ${who}${why}`;
    return Object.assign(element("option", "", text), { value: String(record.generation) });
  }));
  // The rules of a day ago, if they are stored.
  const yesterday = before.find((record) => record.at_ms <= Date.now() - DAY_MS) ?? before[0];
  choice.value = String(yesterday.generation);
  const list = element("ul", "diff");
  list.setAttribute("aria-live", "polite");
  shown.body.append(labelled("Then", choice, "the rules that people made last; what follows has changed since"), list);
  let [then, done] = [null, false];
  const look = async () => {
    [then, back.disabled] = [null, true];
    const asked = choice.value;
    const told = await send("GET", `/v1/rules/${encodeURIComponent(name)}/earlier`, { query: { generation: asked } });
    if (asked !== choice.value) return;
    then = told.rule;
    const { removed, added } = told.since;
    const lines = [...removed.map((text) => element("li", "gone", `− ${text}`)), ...added.map((text) => element("li", "come", `+ ${text}`))];
    list.replaceChildren(...(lines.length > 0 ? lines : [element("li", "", "it was as it is now")]));
    back.disabled = lines.length === 0;
  };
  const show = () => {
    shown.say("");
    list.replaceChildren();
    look().catch((error) => shown.say(error.message));
  };
  const back = shown.button("Back to this …", async () => {
    done = await review(`${name} as it was: review`, transaction(generation, [then], [name]));
    if (done) shown.close();
  });
  back.hidden = !may("change");
  shown.button("Close", shown.close);
  choice.addEventListener("change", show);
  show();
  choice.focus();
  return new Promise((resolve) => {
    shown.dialog.addEventListener("close", () => resolve(done));
  });
}
