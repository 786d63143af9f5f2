// Signing in and out. A session that ends while something is being written leaves what was typed: the
// dialog lies above it.

import { onLost } from "./ask.js";
import { button, input, labelled, open } from "./dialog.js";
import { acts, me, signIn, signOut, whoAmI } from "./session.js";
import { element } from "./words.js";

let shown = null;

// Shows in `place` who is signed in; `changed` is called when that is another, or nobody can be.
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
      // The daemon is away: it is asked until it answers.
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
    // Browsers close a dialog at a second Escape, whatever it says.
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
