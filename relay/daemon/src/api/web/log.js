// The log of changes, and the rollback to earlier rules.

import { ask } from "./ask.js";
import { button, input, labelled, open } from "./dialog.js";
import { review, rollback } from "./review.js";
import { may } from "./session.js";
import { clock, element } from "./words.js";

const LAST = 500;

export async function showLog() {
  const [changes, kept, { generation }] =
    await Promise.all([ask(`/v1/changes?last=${LAST}`), ask("/v1/generations"), ask("/v1/status")]);
  const numbers = new Set(kept.map((record) => record.generation));
  const shown = open("Changes", { kind: "log" });
  const filter = input("search");
  const list = element("ol", "changes");
  list.tabIndex = 0;
  list.setAttribute("aria-label", "Changes, the newest first");
  for (const change of changes.reverse()) {
    const line = element("li");
    const who = [change.by.user ?? change.by.name ?? change.by.via, change.by.process].filter(Boolean).join(", ");
    const outcome = change.outcome ? ` (${change.outcome})` : "";
    line.append(element("time", "", clock(new Date(change.at_ms))),
      element("strong", "", `generation ${change.generation} by ${who}${outcome}`));
    if (change.message) line.append(element("q", "", change.message));
    line.append(element("pre", "", change.what ?? ""));
    const isChange = change.of === undefined;
    if (may("change") && isChange && numbers.has(change.generation) && change.generation !== generation) {
      line.append(button(`Back to generation ${change.generation} …`, async () => {
        const title = `Back to the rules of generation ${change.generation}`;
        if (await review(title, rollback(generation, change.generation))) shown.close();
      }, shown.say));
    }
    list.append(line);
  }
  filter.addEventListener("input", () => {
    const wanted = filter.value.toLowerCase();
    for (const line of list.children) line.hidden = !line.textContent.toLowerCase().includes(wanted);
  });
  shown.body.append(labelled("Filter", filter), list);
  shown.button("Close", shown.close);
  filter.focus();
}
