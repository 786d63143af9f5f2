// Rates of successive statistics, of what the daemon does not rate itself: inputs, outputs, and the past
// of what rules receive; over the daemon's own time between them, as `mcr top` makes them.

const KEPT = 121;

export class History {
  constructor() {
    this.looks = [];
  }

  add(stats) {
    const last = this.looks.at(-1);
    if (last && stats.uptime_seconds < last.at) this.looks = [];
    const rules = new Map();
    const all = { packets: 0, bytes: 0 };
    for (const rule of stats.rules) {
      all.packets += rule.received.packets;
      all.bytes += rule.received.bytes;
      const came = rule.inputs.map((input) => input.received);
      const sent = rule.outputs.map((output) => output.sent);
      rules.set(rule.name, { received: rule.received, came, sent, dropped: droppedBy(rule).total });
    }
    this.looks.push({ at: stats.uptime_seconds, time: Date.now() / 1000, rules, all });
    if (this.looks.length > KEPT) this.looks.shift();
  }

  came(name, index, seconds) {
    return this.rate(seconds, (look) => look.rules.get(name)?.came[index]);
  }

  sent(name, index, seconds) {
    return this.rate(seconds, (look) => look.rules.get(name)?.sent[index]);
  }

  // Times and rates between each two looks: of one rule, or of all together.
  trail(name) {
    const none = { packets: 0, bytes: 0 };
    const total = (look) => (name === null ? look.all : look.rules.get(name)?.received ?? none);
    const [times, packets, bits] = [[], [], []];
    for (let at = 1; at < this.looks.length; at += 1) {
      const rate = between(this.looks[at - 1], this.looks[at], total);
      times.push(this.looks[at].time);
      packets.push(rate.packets);
      bits.push(rate.bits);
    }
    return { times, packets, bits };
  }

  before(seconds) {
    const now = this.looks.at(-1);
    return this.looks.findLast((look) => now.at - look.at >= seconds * 0.9);
  }

  rate(seconds, of) {
    const now = this.looks.at(-1);
    return between(this.before(seconds) ?? this.looks[0], now, of);
  }
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

// Drops of a rule and its outputs by reason.
export function droppedBy(rule) {
  const reasons = new Map();
  let total = 0;
  for (const drops of [rule.dropped, ...rule.outputs.map((output) => output.dropped)]) {
    for (const [reason, count] of Object.entries(drops)) {
      if (count === 0) continue;
      reasons.set(reason, (reasons.get(reason) ?? 0) + count);
      total += count;
    }
  }
  return { reasons, total };
}
