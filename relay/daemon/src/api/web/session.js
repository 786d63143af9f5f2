// The session, and requests for changes. No script can read the cookie; this module stores the token that
// each change has to carry besides. Without sessions on the daemon, the page is read-only.

import { ask, hasLost } from "./ask.js";

const ROLES = ["view", "operate", "change"];
// Using the page renews the session, at most this often; its own requests do not.
const RENEW_MS = 60_000;
const CHANGE_MS = 35_000;

export const me = { client: null, role: null, csrf: null, certificate: null };
// Whether this listener accepts changes at all.
export let acts = location.protocol === "https:";

// The daemon's refusal of a request.
export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    Object.assign(this, { status, code });
  }
}

// Whether the signed-in client has at least that role.
export function may(role) {
  return me.client !== null && ROLES.indexOf(me.role) >= ROLES.indexOf(role);
}

// Requests the signed-in client.
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

// Requests a change, once: nothing is repeated automatically, because a change whose reply was lost may have
// been made. `query` is appended to the path; `generation` is the required one of the rules. `read` replaces
// JSON parsing of the reply, `limit` is its time limit, `stop` aborts.
export async function send(method, path, { body, query = {}, message = "", generation, ...how } = {}) {
  const headers = { "X-MCR-CSRF": me.csrf ?? "", "Content-Type": "application/json" };
  // A header consists of bytes: the UTF-8 encoding.
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
