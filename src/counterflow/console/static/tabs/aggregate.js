// All others (Q3): what if the combined input of all other units, one number a state, changed?
import { field, make, numberField, put } from "../dom.js";
import { number, quantity } from "../format.js";
import * as reading from "../told.js";
import * as view from "../answer.js";
import * as parts from "./parts.js";

const ABOUT =
  "The combined input of all other units to this unit, one number for each of its states. The unit computes the " +
  "answer from what it holds; it begins with what it has learned, or with zeros if its method learns none.";

function learned(plant, name) {
  const unit = plant.units.find((one) => one.name === name);
  return unit.phi ?? new Array(unit.states).fill(0);
}

export const aggregate = {
  ask: "aggregate",
  graph: "show",
  words: { cause: "", effect: "asked about" },
  heading: "Who acts on whom",
  missing: "Give a number for every state.",

  begin(plant) {
    const unit = parts.defaultUnit(plant);
    return { unit, phi_1: [...learned(plant, unit)], phi_0: learned(plant, unit) };
  },

  fit(told, plant, left) {
    const unit = reading.unitOf(told.unit, plant, parts.defaultUnit(plant), left);
    const base = learned(plant, unit);
    const given = (values, what) => {
      const read = reading.valuesOf(values, what, left);
      return read && read.length === base.length ? read : [...base];
    };
    return { unit, phi_1: given(told.phi_1, "the combined input"), phi_0: given(told.phi_0, "the combined input before") };
  },

  body({ unit, phi_1, phi_0 }) {
    return { unit, phi_1, phi_0 };
  },

  picked: () => [],
  affected: (question) => question.unit,

  controls(host, question, context) {
    put(
      host,
      make("h2", { text: "All others (Q3)" }),
      parts.unitField("Unit", context.plant, question.unit, (name) => {
        Object.assign(question, { unit: name, phi_1: [...learned(context.plant, name)], phi_0: learned(context.plant, name) });
        context.rebuild();
        context.changed(performance.now());
      }),
      ...question.phi_1.map((value, k) => field(
        `Joint effect on state ${k + 1}`,
        numberField(`phi-${k + 1}`, value, (read, when) => {
          question.phi_1[k] = read;
          context.changed(when);
        }, { step: "any" }),
        make("span", { class: "muted", text: `instead of ${number(question.phi_0[k])}` })
      )),
      make("p", { class: "muted", text: ABOUT }),
    );
  },

  async show(answer) {
    const most = Math.max(...answer.ranked.map((one) => one.size), 0) || 1;
    view.table(
      `Most affected in ${answer.unit}`,
      ["Channel", ">Change", ">Times noise"],
      answer.ranked.map((one) => [
        one.channel,
        quantity(number(one.change, null, true), one.measured_in),
        { text: `${number(one.size, one.size < 10 ? 1 : 0)}×`, bar: one.size / most, class: "with-bar" }
      ])
    );
    parts.extra();
    return true;
  },
};
