// A form of a rule, generated from the schema of the configuration, which is generated from the settings'
// rows: a new row becomes a field here without a change.

import { button, input, labelled } from "./dialog.js";
import { element } from "./words.js";

// Keys shown first, if the schema has them.
const FIRST = ["name", "inputs", "outputs", "comment", "labels"];
// Keys that another key covers and explains.
const LEFT_OUT = ["input"];
const EXPLAINED = { inputs: "input" };
const FLEETS = ["share"];

export class Form {
  #fields = new Map();
  #definitions;

  // `schema` is the whole schema; `rule` the initial contents.
  constructor(schema, rule, { isFleets = false } = {}) {
    this.#definitions = schema.definitions;
    const { input: only, ...rest } = rule;
    const values = only === undefined ? rest : { ...rest, inputs: [only] };
    const { properties } = this.#definitions.RuleDocument;
    const keys = Object.keys(properties).filter((key) => !LEFT_OUT.includes(key) && (isFleets || !FLEETS.includes(key)));
    const first = FIRST.filter((key) => keys.includes(key));
    const more = element("details");
    more.append(element("summary", "", "All settings"));
    this.element = element("div", "form");
    for (const key of [...first, ...keys.filter((one) => !first.includes(one))]) {
      const field = this.#field(key, properties[key], values[key], 0);
      field.wrong = element("p", "wrong down");
      field.wrong.setAttribute("role", "alert");
      field.node.dataset.key = key;
      field.node.append(field.wrong);
      this.#fields.set(key, field);
      (first.includes(key) ? this.element : more).append(field.node);
      if (!first.includes(key) && values[key] !== undefined) more.open = true;
    }
    this.element.append(more);
  }

  // The rule as far as it is filled in.
  value() {
    return read(this.#fields);
  }

  // Shows problems at their fields; returns those without a field.
  show(problems) {
    const rest = [];
    const said = new Map();
    for (const problem of problems) {
      const key = problem.key === "input" ? "inputs" : problem.key;
      if (this.#fields.has(key)) said.set(key, [...(said.get(key) ?? []), problem.message]);
      else rest.push(problem);
    }
    for (const [key, field] of this.#fields) {
      const text = (said.get(key) ?? []).join("\n");
      if (field.wrong.textContent !== text) field.wrong.textContent = text;
      for (const one of field.node.querySelectorAll("input, select, textarea")) {
        one.setAttribute("aria-invalid", String(text !== ""));
      }
      if (text !== "" && field.node.parentElement.tagName === "DETAILS") field.node.parentElement.open = true;
    }
    return rest;
  }

  // A part of the schema with its references resolved.
  #resolve(schema) {
    for (let { description } = schema; ;) {
      const next = schema.$ref ? schema : schema.oneOf?.find((one) => one.$ref);
      if (next === undefined) return { ...schema, description };
      description ??= next.description;
      schema = this.#definitions[next.$ref.split("/").at(-1)];
      description ??= schema.description;
    }
  }

  #field(key, of, value, depth) {
    const schema = this.#resolve(of);
    const types = [schema.type ?? []].flat();
    const table = schema.properties ? schema : (schema.anyOf ?? []).map((one) => this.#resolve(one)).find((one) => one.properties);
    const { properties } = this.#definitions.RuleDocument;
    const help = (depth === 0 && properties[EXPLAINED[key]]?.description) || schema.description;
    if (table && depth < 2) return this.#table(key, table, value, { help, depth, hasText: Boolean(schema.anyOf) });
    if (types.includes("array")) {
      const items = this.#resolve(schema.items ?? {});
      if (items.anyOf || items.properties) return this.#list(key, schema, value ?? [], depth);
      return text(key, help, (value ?? []).join("\n"), lines);
    }
    if (types.includes("object")) {
      const pairs = Object.entries(value ?? {}).map(([name, one]) => `${name} = ${one}`);
      return text(key, help, pairs.join("\n"), (said) => {
        const read = lines(said)?.map((line) => line.split("=").map((part) => part.trim()));
        return read && Object.fromEntries(read.map(([name, ...rest]) => [name, rest.join("=")]));
      });
    }
    const words = types.includes("boolean") && !schema.enum ? ["true", "false"] : schema.enum?.filter((word) => typeof word === "string");
    if (words) return choice(key, help, schema.default, words, value, types);
    const shown = typeof value === "object" ? table.required.map((name) => value[name]).join(":") : value;
    return text(key, help, shown ?? "", (said) => {
      const whole = said.trim();
      if (whole === "") return undefined;
      return types.includes("integer") && /^\d{1,15}$/.test(whole) ? Number(whole) : whole;
    }, { placeholder: schema.default ?? "", isLine: true });
  }

  // A table of keys, and the text that may stand for it.
  #table(key, table, value, { help, depth, hasText }) {
    const node = element("fieldset");
    node.append(element("legend", "", key));
    const values = typeof value === "object" ? value : {};
    const subject = table.required?.[0];
    const isPlain = subject !== undefined && !this.#resolve(table.properties[subject]).enum;
    let main = null;
    if (hasText) {
      const shown = typeof value === "object" ? value[subject] ?? "" : value ?? "";
      main = text(isPlain ? subject : key, help, shown, (said) => said.trim() || undefined, { isLine: true });
    } else {
      const is = input("checkbox", value !== undefined);
      const line = labelled("set", is, help);
      main = { node: line, read: () => (is.checked ? {} : undefined), set: () => (is.checked = true) };
    }
    const parts = new Map();
    const more = element("details");
    more.append(element("summary", "", `${key}: options`));
    for (const [name, one] of Object.entries(table.properties)) {
      if (hasText && name === subject) continue;
      const field = this.#field(name, one, values[name], depth + 1);
      parts.set(name, field);
      more.append(field.node);
    }
    more.open = Object.keys(values).some((name) => parts.has(name));
    more.addEventListener("input", () => main.set?.());
    node.append(main.node, more);
    return {
      node,
      read: () => {
        const [said, given] = [main.read(), read(parts)];
        if (Object.keys(given).length === 0) return said;
        if (!hasText) return said && given;
        return subject !== undefined && said !== undefined ? { [subject]: said, ...given } : given;
      },
    };
  }

  // A list of tables, each of which can be removed.
  #list(key, schema, values, depth) {
    const node = element("fieldset");
    const made = [];
    const add = (value) => {
      const field = this.#field(`${key} ${made.length + 1}`, schema.items, value, depth);
      const out = button("Take out", () => {
        made.splice(made.indexOf(field), 1);
        const { previousElementSibling: before } = field.node;
        field.node.remove();
        (before?.querySelector("input") ?? more).focus();
        node.dispatchEvent(new Event("input", { bubbles: true }));
      });
      field.node.append(out);
      made.push(field);
      more.before(field.node);
      return field;
    };
    const more = button(`One more of ${key}`, () => add(undefined).node.querySelector("input").focus());
    node.append(element("legend", "", key), element("small", "", schema.description), more);
    (values.length === 0 ? [undefined] : values).forEach(add);
    return {
      node,
      read: () => {
        const read = made.map((field) => field.read()).filter((one) => one !== undefined);
        return read.length === 0 ? undefined : read;
      },
    };
  }
}

function read(fields) {
  const told = [...fields].map(([key, field]) => [key, field.read()]);
  return Object.fromEntries(told.filter(([, value]) => value !== undefined));
}

function lines(said) {
  const all = said.split("\n").map((line) => line.trim()).filter(Boolean);
  return all.length === 0 ? undefined : all;
}

function text(key, help, shown, parse, { placeholder = "", isLine = false } = {}) {
  const field = isLine ? input("text", String(shown)) : element("textarea");
  if (!isLine) Object.assign(field, { value: shown, rows: Math.max(1, shown.split("\n").length), spellcheck: false });
  field.placeholder = placeholder;
  return { node: labelled(key, field, help), read: () => parse(field.value) };
}

function choice(key, help, standard, words, value, types) {
  const field = element("select");
  const unset = element("option", "", standard === undefined ? "not set" : `default (${standard})`);
  unset.value = "";
  field.append(unset, ...words.map((word) => element("option", "", word)));
  const shown = value === true && !words.includes("true") ? "yes" : value === false && !words.includes("false") ? "no" : value;
  field.value = shown === undefined ? "" : String(shown);
  const parse = (word) => (types.includes("boolean") && ["true", "false"].includes(word) ? word === "true" : word);
  return { node: labelled(key, field, help), read: () => (field.value === "" ? undefined : parse(field.value)) };
}
