// How a rule does, in the word that the daemon has for it.

// The state of a rule as the page shows it: the worse of its own state and its stream's, and silent if a
// stream has stopped.

import { duration, things } from "./words.js";

// Worst first, in the daemon's order.
export const STATES = ["down", "silent", "degraded", "waiting", "up", "idle", "disabled"];
// The states that need attention.
export const TROUBLE = ["down", "silent", "degraded"];
// How long a rule may wait for its stream before that is trouble.
const WAITING_SECONDS = 60;

export function judge(rule) {
  return rule.condition;
}

export function isLate(rule) {
  return judge(rule) === "waiting" && rule.waiting_seconds >= WAITING_SECONDS;
}

// Why a rule is in its state, if there is a reason.
export function reason(rule) {
  const state = judge(rule);
  const silent = state === "waiting" ? `nothing has come for ${duration(rule.waiting_seconds)}`
    : state === "silent" && !rule.health?.reason ? `no packet for ${duration(rule.silent_seconds)}` : undefined;
  const { by, at_ms: at, message } = rule.acknowledged ?? {};
  const seen = by && `acknowledged by ${by.user ?? by.name ?? by.via} at ${new Date(at).toLocaleString()}${message ? `: ${message}` : ""}`;
  return [silent, rule.state_reason ?? rule.health?.reason, nobody(rule), seen].filter(Boolean).join("; ") || undefined;
}

// Whether an output's packets reach nobody; an output on demand sends nothing then, which is no trouble.
export function isUnheard(output) {
  return output.unheard !== undefined && output.wanted === undefined;
}

function nobody({ outputs }) {
  const [first, ...more] = outputs.filter(isUnheard);
  if (more.length > 0) return `${things(more.length + 1, "output")} reach nobody`;
  return first && `output ${first.to} reaches nobody: ${first.unheard}`;
}

const SPOKEN = 5;

// The changes between two samples as text: rule by rule, or the counts by state. Rules missing in one sample
// are skipped.
export function changes(before, now) {
  const changed = [...now].filter(([name, state]) => before.has(name) && before.get(name) !== state);
  if (changed.length <= SPOKEN) return changed.map(([name, state]) => `${name} is ${state}`).join(", ");
  const counts = STATES.map((state) => [changed.filter(([, is]) => is === state).length, state]);
  return counts.filter(([count]) => count > 0).map(([count, state]) => `${things(count, "rule")} ${count === 1 ? "is" : "are"} ${state}`).join(", ");
}

// The state of the link between a rule and one of its ends.
export function linkState(rule, end, kind, history) {
  const state = judge(rule);
  if (state === "disabled" || state === "idle" && (kind === "input" || end.state === "up")) return "idle";
  if (kind === "input" && !end.joined) return "down";
  if (kind === "output" && end.state !== "up") return end.state;
  if (kind === "output" && (end.wanted === 0 || end.addresses?.length === 0)) return "idle";
  if (state === "silent" || state === "waiting") return state;
  if (kind === "output" && isUnheard(end)) return "degraded";
  if (kind === "input" && rule.health?.state === "degraded") return "degraded";
  if (rule.rates.packets_1s === 0) return "idle";
  if (kind === "input") {
    if (end.trouble !== undefined) return "degraded";
    // With several inputs only some may have a stream.
    const several = rule.inputs.length > 1;
    return several && history.came(rule.name, rule.inputs.indexOf(end)).packets === 0 ? "idle" : "up";
  }
  // Packets arrive but none leave: all are dropped.
  return history.sent(rule.name, rule.outputs.indexOf(end)).packets > 0 ? "up" : "degraded";
}

// Drop reasons without loss: another copy passed, or nobody listens.
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
