// The page's requests: short, each with a time limit. A browser opens six connections to a host for all its
// tabs together, so none is held open, and a network that drops packets would occupy one for minutes.

const LEAST_MS = 3000;
const MOST_MS = 8000;

// How long a reply may take: longer after one that timed out, because it may be a long one.
let limit = LEAST_MS;
// When the daemon answered last, by this page's clock.
let answered = performance.now();

// Called when the daemon no longer recognises the client.
let lost = () => {};

export function onLost(call) {
  lost = call;
}

export function hasLost() {
  lost();
}

export function hasAnswered() {
  answered = performance.now();
}

export function secondsSinceAnswer() {
  return (performance.now() - answered) / 1000;
}

// The daemon's reply: its JSON, or what `read` makes of it.
export async function ask(path, { headers = {}, read = (answer) => answer.json() } = {}) {
  const began = performance.now();
  try {
    const answer = await fetch(path, { cache: "no-store", headers, signal: AbortSignal.timeout(limit) });
    if (answer.status === 401) lost();
    if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
    const told = await read(answer);
    limit = Math.min(MOST_MS, Math.max(LEAST_MS, 4 * (performance.now() - began)));
    return told;
  } catch (error) {
    if (error.name !== "TimeoutError") throw error;
    const message = `no answer within ${(limit / 1000).toFixed(0)} s`;
    limit = Math.min(MOST_MS, limit * 1.5);
    throw new Error(message);
  }
}
