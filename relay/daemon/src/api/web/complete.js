// Completion at the caret in a text of rules, by the schema of the configuration: keys that are not set yet,
// and the values of keys with fixed values.

import { element } from "./words.js";

const LISTED = 12;

// Offers completions below `area`. Down and Up select, Enter or Tab accepts, Escape closes, and Ctrl+Space
// opens.
export function complete(area, { definitions }) {
  const list = element("ul", "offers");
  list.id = "offers";
  list.setAttribute("role", "listbox");
  list.ariaLabel = "What may be written here";
  area.setAttribute("aria-autocomplete", "list");
  area.setAttribute("aria-controls", list.id);
  let at = -1;
  const resolve = (schema) => {
    const next = schema?.$ref ? schema : schema?.oneOf?.find((one) => one.$ref);
    return next === undefined ? schema ?? {} : resolve(definitions[next.$ref.split("/").at(-1)]);
  };
  // The keys of a table, or of the tables in a list, if a part of the schema can be one.
  const keys = (schema) => {
    const { properties, items, anyOf = [] } = resolve(schema);
    return properties ?? (items ? keys(items) : anyOf.map(keys).find((one) => one !== undefined));
  };
  const close = () => {
    at = -1;
    list.replaceChildren();
    list.hidden = true;
    area.removeAttribute("aria-activedescendant");
  };
  // The keys of the table that a line is in, and those already set.
  const table = (lines) => {
    const head = lines.findLastIndex((line) => /^\s*\[/.test(line));
    const [, key] = lines[head]?.match(/^\s*\[\[?rule(?:\.(\w+))?\]/) ?? [null, null];
    if (key === null) return null;
    const rule = definitions.RuleDocument.properties;
    const properties = key === undefined ? rule : keys(rule[key]);
    return properties && { properties, said: lines.slice(head + 1, -1).map((line) => line.split("=")[0].trim()) };
  };
  const offers = (isAsked) => {
    const lines = area.value.slice(0, area.selectionStart).split("\n");
    const here = table(lines);
    if (here === null || here === undefined) return [[], ""];
    const line = lines.at(-1);
    const [, key, begun] = line.match(/^\s*(\w+)\s*=\s*"?([\w-]*)$/) ?? [];
    if (key !== undefined) {
      const words = (resolve(here.properties[key]).enum ?? []).filter((word) => typeof word === "string");
      return [words.filter((word) => word.startsWith(begun) && word !== begun).map((word) => [word, "", ""]), begun];
    }
    const [, name] = line.match(/^\s*(\w*)$/) ?? [];
    if (name === undefined || name === "" && !isAsked) return [[], ""];
    const left = Object.entries(here.properties).filter(([one]) => one.startsWith(name) && !here.said.includes(one));
    return [left.map(([one, schema]) => [one, schema.description ?? resolve(schema).description ?? "", " = "]), name];
  };
  const show = (isAsked = false) => {
    const [all, begun] = offers(isAsked);
    close();
    list.append(...all.slice(0, LISTED).map(([word, help, more], number) => {
      const offer = element("li", "", word);
      Object.assign(offer, { id: `offer${number}`, title: help.replaceAll("`", "") });
      offer.setAttribute("role", "option");
      offer.addEventListener("mousedown", (event) => event.preventDefault());
      offer.take = () => take(word + more, begun);
      offer.addEventListener("click", offer.take);
      return offer;
    }));
    list.hidden = list.children.length === 0;
  };
  const take = (text, begun) => {
    const from = area.selectionStart - begun.length;
    area.setRangeText(text, from, area.selectionStart, "end");
    close();
    area.focus();
    area.dispatchEvent(new Event("input", { bubbles: true }));
  };
  const choose = (to) => {
    const offers = [...list.children];
    at = (to + offers.length) % offers.length;
    offers.forEach((offer, number) => offer.setAttribute("aria-selected", String(number === at)));
    area.setAttribute("aria-activedescendant", offers[at].id);
  };
  area.addEventListener("input", () => show());
  area.addEventListener("blur", close);
  area.addEventListener("keydown", (event) => {
    const { key } = event;
    if (key === " " && event.ctrlKey) show(true);
    else if (list.hidden) return;
    else if (key === "ArrowDown") choose(at + 1);
    else if (key === "ArrowUp") choose(at < 0 ? -1 : at - 1);
    else if (key === "Escape") close();
    else if (["Enter", "Tab"].includes(key) && at >= 0) list.children[at].take();
    else return;
    event.preventDefault();
  });
  close();
  return list;
}
