// Dialogs and buttons: the browser's modal dialogs, so that the keyboard focus stays inside and returns.
// Errors are shown in the dialog.

import { element } from "./words.js";

let count = 0;

// A button whose action runs once at a time; `say` shows its errors.
export function button(text, act, say = () => {}) {
  const made = element("button", "", text);
  made.type = "button";
  made.addEventListener("click", async () => {
    if (made.getAttribute("aria-disabled") === "true") return;
    made.setAttribute("aria-disabled", "true");
    try {
      say("");
      await act();
    } catch (error) {
      say(error.message);
    } finally {
      made.removeAttribute("aria-disabled");
    }
  });
  return made;
}

// The label of a field, the field, and its help.
export function labelled(text, field, help) {
  const label = element("label", "field", text);
  field.id ||= `f${(count += 1)}`;
  label.htmlFor = field.id;
  const line = element("div", "line");
  line.append(label, field);
  if (help) {
    const hint = element("small", "", help.replaceAll("`", ""));
    hint.id = `h${(count += 1)}`;
    field.setAttribute("aria-describedby", hint.id);
    line.append(hint);
  }
  return line;
}

export function input(type, value = "") {
  const made = element("input");
  Object.assign(made, { type, autocomplete: "off", spellcheck: false });
  if (type === "checkbox") made.checked = value === true;
  else made.value = value;
  return made;
}

// Opens a dialog. `isDirty` returns whether there is input that Escape must not discard at once.
export function open(title, { isDirty = () => false, kind = "" } = {}) {
  const dialog = element("dialog", kind);
  const heading = element("h2", "", title);
  heading.id = `h${(count += 1)}`;
  dialog.setAttribute("aria-labelledby", heading.id);
  const body = element("div", "body");
  const said = element("p", "said down");
  said.setAttribute("role", "alert");
  const buttons = element("div", "buttons");
  dialog.append(heading, body, said, buttons);
  document.body.append(dialog);
  const say = (text) => {
    said.textContent = text;
  };
  let warned = false;
  dialog.addEventListener("cancel", (event) => {
    if (event.target !== dialog || warned || !isDirty()) return;
    event.preventDefault();
    warned = true;
    say("Escape again throws away what was typed.");
  });
  dialog.addEventListener("input", () => {
    warned = false;
  });
  dialog.addEventListener("close", () => dialog.remove());
  dialog.showModal();
  return {
    dialog, body, say,
    add: (...made) => buttons.append(...made),
    button(text, act) {
      const made = button(text, act, say);
      buttons.append(made);
      return made;
    },
    close: () => dialog.close(),
  };
}
