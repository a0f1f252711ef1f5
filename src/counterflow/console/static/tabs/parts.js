// What several kinds of questions share: horizon, level, unit, trajectories and their tables.
import { byId, field, freshId, make, readField, select } from "../dom.js";
import { clockOf, measured, number, percent, quantity, stepsOf } from "../format.js";
import { panelsFigure } from "../plots.js";
import * as view from "../answer.js";

const LEVELS = [0.8, 0.9, 0.95, 0.99];
export const LONGEST = 20_000; // steps, as the server allows

/** The first unit whose outputs this seat can see. */
export function defaultUnit(plant) {
  return plant.unit ?? plant.units.find((unit) => unit.outputs.length)?.name ?? plant.units[0].name;
}

/** The text of a band's key; null if there is no band. */
export function bandText(level, drawn) {
  return level && drawn.some((one) => one.lower && one.upper) ? `${percent(level)} band` : null;
}

/** Horizon in the clock's unit. */
export function horizonField(question, plant, changed) {
  const control = durationField("horizon", question.horizon, 1, LONGEST, plant, (steps, when) => {
    if (steps === question.horizon) return;
    question.horizon = steps;
    changed(when);
  });
  return field(`Horizon (${plant.clock.unit})`, control);
}

/** A time as steps: a number in the clock's unit, or a duration such as "2h". */
export function durationField(id, steps, least, most, plant, changed) {
  const { clock, dt } = plant;
  const read = (text) => {
    const found = stepsOf(text, clock, dt);
    return found !== null && found >= least && found <= most ? found : null;
  };
  const shown = String(Number((steps * clock.step).toPrecision(12)));
  return readField(id, shown, read, changed, { title: `in ${clock.unit}, or a time such as 2h or 90 min` });
}

export function levelField(question, changed) {
  const levels = LEVELS.includes(question.level) ? LEVELS : [...LEVELS, question.level].sort();
  const options = levels.map((level) => [String(level), percent(level)]);
  return field("Interval", select("level", options, String(question.level), (text) => {
    question.level = Number(text);
    changed(performance.now());
  }));
}

/** Whether controllers react, and which of this seat's own would follow another law; nothing where there are none. */
export function worldField(question, plant, changed) {
  if (!plant.controllers) return null;
  const options = [["", "as the data support"], ["reacting", "react, as the plant runs"], ["held", "held where they are"]];
  const world = select("controllers", options, question.controllers ?? "", (text) => {
    question.controllers = text || undefined;
    changed(performance.now());
  });
  const loops = plant.loops.map((loop) => lawField(question, loop, changed));
  return make("div", { class: "row" }, field("Controllers", world), ...loops);
}

/** Another law of one controller, in words; empty: its own. */
function lawField(question, { unit, input, reads }, changed) {
  const others = () => (question.laws ?? []).filter((one) => one.unit !== unit || one.input !== input);
  const own = (question.laws ?? []).find((one) => one.unit === unit && one.input === input);
  const control = make("input", {
    type: "text", id: freshId("law"), value: own?.law ?? "", placeholder: "as it runs", maxlength: 200,
    autocomplete: "off", spellcheck: "false",
    on: {
      change: () => {
        const law = control.value.trim();
        question.laws = law ? [...others(), { unit, input, law }] : others();
        changed(performance.now());
      },
    },
  });
  const hint = `reads ${reads}; write manual, or pid gain=2 integral_time=10`;
  return field(`Loop of ${input}`, control, make("span", { class: "muted", text: hint }));
}

/** What a question says of controllers; nothing if it says nothing. */
export function worldBody({ controllers, laws }) {
  return { controllers, ...(laws?.length ? { laws } : {}) };
}

/** The unit asked about: any with outputs at the server, one's own at a unit. */
export function unitField(label, plant, value, onChange) {
  const possible = plant.units.filter((unit) => unit.outputs.length || unit.name === value);
  const control = select("effect", possible.map((unit) => [unit.name, unit.name]), value, onChange);
  control.disabled = plant.kind === "unit";
  return field(label, control, plant.kind === "unit" ? make("span", { class: "muted", text: "this seat" }) : null);
}

/** Names of a unit's channels that this seat can see. */
export function channels(unit) {
  return (unit?.outputs ?? []).map((output) => output.name);
}

export function channelTitle({ channel, measured_in }) {
  return measured_in ? `${channel} (${measured_in})` : channel;
}

/** Times k+1 steps after now, in the clock's unit. */
export function after(count, clock) {
  return Array.from({ length: count }, (_, k) => (k + 1) * clock.step);
}

/** Times of rows from `first` on. */
export function times(first, count, clock) {
  return Array.from({ length: count }, (_, k) => (first + k) * clock.step);
}

export function sum(a, b) {
  return a.map((value, k) => (value === null || b[k] === null ? null : value + b[k]));
}

/** What stands below an axis of rows: dates where they are known; nothing else to say otherwise. */
export function dates(plant) {
  return plant.calendar ? (x) => clockOf(Math.round(x / plant.clock.step), plant.calendar) : null;
}

/** Draw panels in the answer's place. */
export function plotPanels(panels, given) {
  return view.plot((width) => panelsFigure(panels, { ...given, width }));
}

/** The table of the most affected channels; when: what the column of time holds for one of them. */
export function rankedTable(answer, { caption, whenTitle, when, noisy }) {
  const most = Math.max(...answer.most_affected.map((one) => one.size ?? 0), 0) || 1;
  const level = answer.level ? `${percent(answer.level)} interval` : null;
  const rows = answer.most_affected.map((one) => {
    const { value, interval } = measured(one.mean, one.lower, one.upper, one.measured_in, true);
    const unsure = one.lower !== null && one.upper !== null && one.lower <= 0 && one.upper >= 0;
    const cells = [one.channel, value];
    if (level) cells.push({ text: interval || "–", note: unsure ? "sign not sure" : "" });
    cells.push(
      when(one),
      {
        text: noisy ? `${number(one.size, one.size < 10 ? 1 : 0)}×` : number(one.size),
        bar: (one.size ?? 0) / most,
        class: "with-bar"
      }
    );
    return cells;
  });
  view.table(
    caption,
    ["Channel", ">Change", ...(level ? [`>${level}`] : []), `>${whenTitle}`, noisy ? ">Times noise" : ">Size"],
    rows
  );
}

/** Horizontal bars around zero, for example through whom an effect goes: rows [{label, value}]. */
export function signedBars(rows, unit) {
  const most = Math.max(...rows.map((row) => Math.abs(row.value)), 0) || 1;
  const digits = Math.max(0, Math.min(6, 2 - Math.floor(Math.log10(most))));
  return make(
    "ul", { class: "signed-bars" },
    ...rows.map(({ label, value, strong }) => {
      const wide = (50 * Math.abs(value)) / most;
      const bar = make(
        "span",
        { class: `signed${value < 0 ? " minus" : ""}`, "aria-hidden": "true" },
        make("span", { style: { left: `${value < 0 ? 50 - wide : 50}%`, width: `${wide}%` } })
      );
      return make(
        "li",
        { class: strong ? "strong" : null },
        make("span", { class: "bar-label", text: label }),
        bar,
        make("span", { class: "figure", text: quantity(number(value, digits, true), unit) })
      );
    }),
  );
}

export function extra(...children) {
  byId("extra").replaceChildren(...children.filter(Boolean));
}
