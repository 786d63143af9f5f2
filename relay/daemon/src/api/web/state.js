// How a rule does, as the page says it: the worse of its own state and its stream's, and silent where a
// stream came and comes no more.

// Worst first.
export const STATES = ["down", "silent", "degraded", "up", "idle", "disabled"];

// `RuleStats::condition` of the daemon says the same.
export function judge(rule) {
  if (rule.state === "down" || rule.state === "disabled") return rule.state;
  const both = [rule.state, rule.health?.state];
  const worst = ["down", "degraded"].find((state) => both.includes(state)) ?? "up";
  // All outputs are on demand, and nobody listens.
  const isIdle = rule.outputs.length > 0 && rule.outputs.every((output) => output.wanted === 0);
  if (worst === "up" && isIdle) return "idle";
  return rule.silent_seconds !== undefined ? "silent" : worst;
}

export function why(rule) {
  return rule.state_reason ?? rule.health?.reason;
}

// How the link between a rule and one of its ends does.
export function linkState(rule, end, kind, history) {
  const state = judge(rule);
  if (state === "disabled" || state === "idle" && (kind === "input" || end.state === "up")) return "idle";
  if (kind === "input" && !end.joined) return "down";
  if (kind === "output" && end.state !== "up") return end.state;
  if (kind === "output" && end.wanted === 0) return "idle";
  if (state === "silent") return "silent";
  if (kind === "input" && rule.health?.state === "degraded") return "degraded";
  if (rule.rates.packets_1s === 0) return "idle";
  if (kind === "input") {
    if (end.trouble !== undefined) return "degraded";
    // Of several inputs only some may have a stream.
    const several = rule.inputs.length > 1;
    return several && history.came(rule.name, rule.inputs.indexOf(end)).packets === 0 ? "idle" : "up";
  }
  // Something comes but nothing leaves: all of it is dropped.
  return history.sent(rule.name, rule.outputs.indexOf(end)).packets > 0 ? "up" : "degraded";
}

// Dropped because another copy passed, or nobody listens: nothing is lost.
const MEANT = ["standby", "duplicate", "not_wanted"];

// Drops of a rule and its outputs by reason, and how many packets were lost by them.
export function droppedBy(rule) {
  const reasons = new Map();
  let total = 0;
  for (const drops of [rule.dropped, ...rule.outputs.map((output) => output.dropped)]) {
    for (const reason in drops) {
      const count = drops[reason];
      if (count === 0) continue;
      reasons.set(reason, (reasons.get(reason) ?? 0) + count);
      if (!MEANT.includes(reason)) total += count;
    }
  }
  return { reasons, total };
}
