// Rates from successive statistics, for what the daemon does not rate itself: inputs and outputs of the last
// seconds, and what rules received, over the daemon's time between two samples. The daemon has the last hour
// in steps, which are requested for what is shown; only newer samples are stored here, three numbers for
// each rule in a sample.

import { droppedBy } from "./state.js";

// The length of a step, and the least time between requests.
const KEPT_SECONDS = 30;
const SECONDS = 1;
const NONE = { packets: 0, bits: 0, drops: 0 };

export class History {
  constructor() {
    // Samples are at least a second apart; the last few are stored completely.
    this.recent = [];
    this.past = [];
    // The last hour of one rule, or of all together.
    this.steps = null;
  }

  // Whether the history of a rule, or with null of all, is to be requested.
  wants(name) {
    const { steps } = this;
    return steps === null || steps.name !== name || now() - steps.until >= 2 * steps.length;
  }

  // Stores the daemon's history of a rule, or of all together.
  begin(name, told) {
    const { packets, bytes, dropped } = told.rules[0] ?? told.all;
    const [length, until] = [told.step_seconds, now() - told.age_seconds];
    this.steps = { name, packets, bytes, dropped, length, until };
  }

  add(stats) {
    const last = this.past.at(-1);
    if (last && stats.uptime_seconds < last.at) [this.recent, this.past, this.steps] = [[], [], null];
    const names = stats.rules.map((rule) => rule.name);
    const known = this.past.at(-1)?.places;
    const same = known?.size === names.length && names.every((name, place) => known.get(name) === place);
    const look = {
      at: stats.uptime_seconds,
      time: now(),
      places: same ? known : new Map(names.map((name, place) => [name, place])),
      packets: Float64Array.from(stats.rules, (rule) => rule.received.packets),
      bytes: Float64Array.from(stats.rules, (rule) => rule.received.bytes),
      dropped: Float64Array.from(stats.rules, (rule) => droppedBy(rule).total),
    };
    const { received, dropped } = stats.selection;
    look.all = { ...received, dropped };
    this.past.push(look);
    while (this.past.length > 2 && look.time - this.past[1].time > KEPT_SECONDS) this.past.shift();
    this.recent.push({ at: look.at, places: look.places, rules: stats.rules });
    // Removes all but the newest sample that is old enough to compare with.
    while (this.recent.length > 2 && look.at - this.recent[1].at >= SECONDS * 0.9) this.recent.shift();
  }

  came(name, index) {
    return this.rate(name, (rule) => rule.inputs[index]?.received);
  }

  sent(name, index) {
    return this.rate(name, (rule) => rule.outputs[index]?.sent);
  }

  // Times and rates in each step and then between successive samples: of one rule, or of all together.
  trail(name) {
    const total = (look) => {
      if (name === null) return look.all;
      const place = look.places.get(name);
      const { packets, bytes, dropped } = look;
      return place === undefined ? undefined
        : { packets: packets[place], bytes: bytes[place], dropped: dropped[place] };
    };
    const [times, packets, bits, drops] = [[], [], [], []];
    const steps = this.steps?.name === name ? this.steps : { packets: [], until: 0 };
    steps.packets.forEach((count, place) => {
      times.push(steps.until - (steps.packets.length - place - 0.5) * steps.length);
      packets.push(count / steps.length);
      bits.push((steps.bytes[place] * 8) / steps.length);
      drops.push(steps.dropped[place] / steps.length);
    });
    // Samples lack a rule while it was neither shown nor selected.
    const past = this.past.filter(total);
    for (let at = 1; at < past.length; at += 1) {
      if (past[at].time <= steps.until) continue;
      const rate = between(past[at - 1], past[at], total);
      times.push(past[at].time);
      packets.push(rate.packets);
      bits.push(rate.bits);
      drops.push(rate.drops);
    }
    return { times, packets, bits, drops };
  }

  rate(name, of) {
    const counted = (look) => {
      const rule = look.rules[look.places.get(name)];
      return rule && of(rule);
    };
    const told = this.recent.filter(counted);
    return told.length === 0 ? NONE : between(told[0], told.at(-1), counted);
  }
}

function now() {
  return Date.now() / 1000;
}

function between(before, now, of) {
  const seconds = now.at - before.at;
  const [then, counted] = [of(before), of(now)];
  if (!then || !counted || seconds <= 0) return NONE;
  const rate = (name) => Math.max(0, (counted[name] ?? 0) - (then[name] ?? 0)) / seconds;
  return { packets: rate("packets"), bits: rate("bytes") * 8, drops: rate("dropped") };
}
