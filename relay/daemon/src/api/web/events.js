// The daemon's events of any kind, newest first.

import { ask } from "./ask.js";
import { TROUBLE_EVENTS } from "./counters.js";
import { clock, element, things } from "./words.js";

const KEPT = 200;
const RED = /down|failed|fenced|away|refused|not_/;

export class Events {
  // The number of the last event.
  #last = null;

  // Requests the events after the last one; shows them in `list`.
  async look(list) {
    const headers = this.#last === null ? {} : { "Last-Event-ID": this.#last };
    const read = (answer) => answer.text();
    const text = await ask(`/v1/events?recent=${KEPT}&brief=true&follow=false`, { headers, read });
    for (const told of text.split("\n\n")) {
      const field = (name) => told.match(new RegExp(`^${name}: ?(.*)$`, "m"))?.[1];
      const data = field("data");
      if (data === undefined) continue;
      this.#last = field("id") ?? this.#last;
      tell(list, field("event") === "missed" ? missed(Number(data)) : JSON.parse(data));
    }
    while (list.children.length > KEPT) list.lastChild.remove();
  }
}

function missed(count) {
  return { at_ms: Date.now(), kind: "missed", message: `${things(count, "event")} missed` };
}

function tell(list, { at_ms, kind, message }) {
  const line = element("li", !TROUBLE_EVENTS.includes(kind) ? "" : RED.test(kind) ? "down" : "degraded");
  line.append(element("time", "", clock(new Date(at_ms))), message);
  list.prepend(line);
}
