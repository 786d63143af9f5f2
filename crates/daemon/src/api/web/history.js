// Rates of successive statistics, of what the daemon does not rate itself: inputs and outputs of the last
// seconds, and what rules received in the past, over the daemon's own time between two looks. What is kept
// of the past is two numbers a rule and look, for there may be ten thousand rules.

const KEPT = 121;
const SECONDS = 1;

export class History {
  constructor() {
    // Every two looks lie a second or more apart; the last few are kept whole.
    this.recent = [];
    this.past = [];
  }

  add(stats) {
    const last = this.past.at(-1);
    if (last && stats.uptime_seconds < last.at) [this.recent, this.past] = [[], []];
    const names = stats.rules.map((rule) => rule.name);
    const known = this.past.at(-1)?.places;
    const same = known?.size === names.length && names.every((name, place) => known.get(name) === place);
    const look = {
      at: stats.uptime_seconds,
      time: Date.now() / 1000,
      places: same ? known : new Map(names.map((name, place) => [name, place])),
      packets: Float64Array.from(stats.rules, (rule) => rule.received.packets),
      bytes: Float64Array.from(stats.rules, (rule) => rule.received.bytes),
    };
    look.all = { packets: sum(look.packets), bytes: sum(look.bytes) };
    this.past.push(look);
    if (this.past.length > KEPT) this.past.shift();
    this.recent.push({ at: look.at, places: look.places, rules: stats.rules });
    // All but the newest of those that are old enough to compare with.
    while (this.recent.length > 2 && look.at - this.recent[1].at >= SECONDS * 0.9) this.recent.shift();
  }

  came(name, index) {
    return this.rate(name, (rule) => rule.inputs[index]?.received);
  }

  sent(name, index) {
    return this.rate(name, (rule) => rule.outputs[index]?.sent);
  }

  // Times and rates between each two looks: of one rule, or of all together.
  trail(name) {
    const total = (look) => {
      if (name === null) return look.all;
      const place = look.places.get(name);
      return place === undefined ? undefined : { packets: look.packets[place], bytes: look.bytes[place] };
    };
    const [times, packets, bits] = [[], [], []];
    for (let at = 1; at < this.past.length; at += 1) {
      const rate = between(this.past[at - 1], this.past[at], total);
      times.push(this.past[at].time);
      packets.push(rate.packets);
      bits.push(rate.bits);
    }
    return { times, packets, bits };
  }

  rate(name, of) {
    const counted = (look) => {
      const rule = look.rules[look.places.get(name)];
      return rule && of(rule);
    };
    return between(this.recent[0], this.recent.at(-1), counted);
  }
}

function sum(numbers) {
  return numbers.reduce((all, number) => all + number, 0);
}

function between(before, now, of) {
  const seconds = now.at - before.at;
  const [then, counted] = [of(before), of(now)];
  if (!then || !counted || seconds <= 0) return { packets: 0, bits: 0 };
  return {
    packets: Math.max(0, counted.packets - then.packets) / seconds,
    bits: (Math.max(0, counted.bytes - then.bytes) * 8) / seconds,
  };
}
