// Who is signed in, and how a change is asked for. The cookie no script sees; what is kept here is what
// each change has to say besides. Where the daemon knows no sessions, the page only shows.

import { ask, hasLost } from "./ask.js";

const ROLES = ["view", "operate", "change"];
// Using the page renews the session, at most so often; its own questions do not.
const RENEW_MS = 60_000;
const CHANGE_MS = 35_000;

export const me = { client: null, role: null, csrf: null, certificate: null };
// Whether this listener takes changes at all.
export let acts = location.protocol === "https:";

// What the daemon says against a request.
export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    Object.assign(this, { status, code });
  }
}

// Whether whoever is signed in may do what takes that role.
export function may(role) {
  return me.client !== null && ROLES.indexOf(me.role) >= ROLES.indexOf(role);
}

// Asks who is signed in.
export async function whoAmI() {
  const none = { client: null, role: null, csrf: null, certificate: null };
  try {
    Object.assign(me, none, await ask("/v1/session"));
  } catch (error) {
    if (!error.message.startsWith("404")) throw error;
    acts = false;
  }
}

export async function signIn(token) {
  const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  await request("POST", "/v1/session", { headers });
  await whoAmI();
}

export async function signOut() {
  await send("DELETE", "/v1/session");
  Object.assign(me, { client: null, role: null, csrf: null });
  hasLost();
}

// Asks for a change, once: nothing is sent again by itself, for a change whose answer was lost may have
// been made. `query` is what stands behind the path; `generation` what the rules have to be of.
// `read` makes something else of the answer than JSON, `limit` is how long it may take, `stop` gives it up.
export async function send(method, path, { body, query = {}, message = "", generation, ...how } = {}) {
  const headers = { "X-MCR-CSRF": me.csrf ?? "", "Content-Type": "application/json" };
  // A header is bytes: those of UTF-8.
  const bytes = new TextEncoder().encode(message);
  if (message) headers["X-MCR-Message"] = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  if (generation !== undefined) headers["If-Match"] = `"${generation}"`;
  const asked = new URLSearchParams(query).toString();
  const text = body === undefined ? undefined : JSON.stringify(body);
  return request(method, asked ? `${path}?${asked}` : path, { headers, body: text, ...how });
}

async function request(method, path, { read, limit = CHANGE_MS, stop, ...options }) {
  let [answer, told] = [null, null];
  try {
    const signal = AbortSignal.any([AbortSignal.timeout(limit), ...(stop ? [stop] : [])]);
    answer = await fetch(path, { ...options, method, cache: "no-store", signal });
    told = await (answer.ok && read ? read(answer) : answer.json().catch(() => null));
  } catch {
    const lost = "the daemon did not answer, and nothing is sent again by itself; what runs shows whether it was done";
    throw new Refused(0, "unreachable", lost);
  }
  if (answer.status === 401 && path !== "/v1/session") hasLost();
  if (!answer.ok) throw new Refused(answer.status, told?.code, told?.message ?? `${answer.status} ${answer.statusText}`);
  return told;
}

let renewed = 0;
for (const kind of ["pointerdown", "keydown"]) {
  addEventListener(kind, () => {
    const now = performance.now();
    if (me.client === null || now - renewed < RENEW_MS) return;
    renewed = now;
    whoAmI().catch(() => {});
  });
}
