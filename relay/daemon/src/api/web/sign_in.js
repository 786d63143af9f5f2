// Signing in and out. If a session ends during input, the input stays: the sign-in dialog opens above it.

import { onLost } from "./ask.js";
import { button, input, labelled, open } from "./dialog.js";
import { acts, me, signIn, signOut, whoAmI } from "./session.js";
import { element } from "./words.js";

let shown = null;

// Shows the signed-in client in `place`; `changed` is called when it changes, or nobody can sign in.
export async function begin(place, changed) {
  const tell = () => {
    place.hidden = me.client === null;
    place.replaceChildren(...(me.client === null ? [] : [`${me.client} (${me.role}) `, button("Sign out", signOut)]));
    changed();
  };
  onLost(() => {
    const was = me.client;
    Object.assign(me, { client: null, role: null, csrf: null });
    if (was !== null) tell();
    if (shown === null) ask(was === null ? "" : "You are signed out. What was typed is kept.", tell);
  });
  while (acts) {
    try {
      await whoAmI();
      break;
    } catch {
      // The daemon is unreachable: retries until it replies.
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
  tell();
  if (acts && me.client === null) ask("", tell);
}

function ask(why, done) {
  shown = open("Sign in", { kind: "sign-in" });
  shown.dialog.addEventListener("cancel", (event) => event.preventDefault());
  shown.dialog.addEventListener("close", () => {
    shown = null;
    // Browsers close a dialog at a second Escape in any case.
    if (me.client === null) ask(why, done);
  });
  const token = input("password");
  token.autocomplete = "current-password";
  const enter = async (shows) => {
    await signIn(shows);
    shown?.close();
    done();
  };
  const form = element("form");
  form.append(labelled("Token", token, "as mcr token create printed it"));
  shown.body.append(element("p", "", why), form);
  const go = shown.button("Sign in", () => enter(token.value.trim()));
  go.className = "main";
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    go.click();
  });
  if (me.certificate !== null) {
    shown.button(`Sign in as ${me.certificate}, by certificate`, () => enter(null));
  }
  token.focus();
}
