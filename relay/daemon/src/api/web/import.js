// Imports rules from other formats: pasted or dropped text. The daemon receives no file name and no address.

import { ask } from "./ask.js";
import { input, labelled, open } from "./dialog.js";
import { edit } from "./editor.js";
import { send } from "./session.js";
import { element } from "./words.js";

export function importRules() {
  const area = element("textarea", "toml");
  const shown = open("Import rules", { isDirty: () => area.value !== "" });
  Object.assign(area, { rows: 12, spellcheck: false });
  const [interfaces, to] = [input("text"), input("text")];
  const file = input("file");
  const take = async ([dropped]) => {
    if (dropped !== undefined) area.value = await dropped.text();
  };
  file.addEventListener("change", () => take(file.files));
  // A file may be dropped anywhere: outside the text, the browser would otherwise open it in place of the page.
  shown.dialog.addEventListener("dragover", (event) => event.preventDefault());
  shown.dialog.addEventListener("drop", (event) => {
    if (event.dataTransfer.files.length === 0) return;
    event.preventDefault();
    take(event.dataTransfer.files);
  });
  shown.body.append(
    labelled("Text", area, "paste or drop an SDP, a playlist, smcroute.conf or a document of IS-05"),
    labelled("File", file, "read into the text; its name is told to nobody"),
    labelled("Interfaces", interfaces, "where streams arrive that the text names none for; the second is of the second leg"),
    labelled("To", to, "where streams go that the text sends nowhere, as %eth1 or 10.9.9.9; several with spaces between"),
  );
  const words = (field) => field.value.split(/[\s]+/).filter(Boolean);
  const next = shown.button("Make rules …", async () => {
    const { generation } = await ask("/v1/status");
    const body = { text: area.value, interfaces: words(interfaces), to: words(to) };
    const { rules, toml, problems } = await send("POST", "/v1/import", { body });
    const remarks = problems.map(({ message }) => message).join("\n");
    if (rules.length === 0) throw new Error(remarks || "no rule can be made of it");
    const said = remarks.split("\n").filter(Boolean).map((line) => `# ${line}\n`).join("");
    if (await edit("Imported rules", { rules, generation, text: said + toml })) shown.close();
  });
  next.className = "main";
  shown.button("Cancel", shown.close);
  area.focus();
}
