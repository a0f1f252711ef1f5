// A question that has no tab of its own here: its form as fields, its answer as a sentence and tables.
import { field, make, put, readField, select } from "../dom.js";
import * as reading from "../told.js";
import * as view from "../answer.js";
import * as parts from "./parts.js";

const LISTS = ["vector", "changes", "past", "plan", "levers", "laws"];

/** What a field holds, as JSON; a text that is none stands for itself. */
function valueOf(text, kind) {
  const whole = text.trim();
  if (whole === "") return null;
  try {
    return JSON.parse(LISTS.includes(kind) && !whole.startsWith("[") ? `[${whole}]` : whole);
  } catch {
    return whole;
  }
}

/** The tab of a question of which the console tells title and form: [{name, kind, help, needed, default}]. */
export function other(ask, { title, form }) {
  const asked = form.find(({ kind }) => kind === "unit" || kind === "units").name;
  const entries = form.filter(({ name }) => name !== asked);
  const missing = (question) => entries.filter(({ name, needed }) => needed && (question[name] ?? null) === null);
  return {
    ask,
    graph: "show",
    words: { cause: "", effect: "asked about" },
    heading: "Who acts on whom",
    missing: (question) => `${title} Give ${missing(question).map(({ name }) => name).join(", ")}.`,

    begin(plant) {
      return { ...Object.fromEntries(entries.map((one) => [one.name, one.default])), [asked]: parts.defaultUnit(plant) };
    },

    fit(told, plant, left) {
      const question = this.begin(plant);
      for (const { name } of entries) if (Object.hasOwn(told, name)) question[name] = told[name];
      question[asked] = reading.unitOf(told[asked], plant, question[asked], left);
      return question;
    },

    body(question) {
      if (missing(question).length) return null;
      return Object.fromEntries(Object.entries(question).filter(([, value]) => value !== null));
    },

    picked: () => [],
    affected: (question) => question[asked],

    controls(host, question, context) {
      const changed = (name) => (value, when) => {
        question[name] = value;
        context.changed(when);
      };
      put(
        host,
        make("h2", { text: title }),
        parts.unitField("Unit", context.plant, question[asked], (name) => {
          question[asked] = name;
          context.rebuild();
          context.changed(performance.now());
        }),
        ...entries.map(({ name, kind, help }) => field(
          name,
          kind === "world"
            ? select(name, ["", "reacting", "held"].map((one) => [one, one]), question[name] ?? "", (text) => {
              changed(name)(text || null, performance.now());
            })
            : readField(
              name, question[name] === null ? "" : JSON.stringify(question[name]).replace(/^"|"$/g, ""),
              (text) => ({ value: valueOf(text, kind) }), ({ value }, when) => changed(name)(value, when)
            ),
          make("span", { class: "muted", text: help }),
        )),
      );
    },

    async show({ tables: [first] }) {
      if (first) view.table(first.title, first.columns.map((name, k) => (k < first.left ? name : `>${name}`)), first.rows);
      parts.extra();
      return true;
    },
  };
}
