// Would have been: other inputs in a window of the past, next to what was measured.
import { broken, jumps } from "../gaps.js";
import { make, put } from "../dom.js";
import { causeGroups, possibleCauses, togglesCause } from "../causes.js";
import { inputControl } from "../sliders.js";
import { dateOf, point, timeTitle } from "../format.js";
import { NO_WINDOW, firstWindow, isWindow, windowPicker } from "../window.js";
import * as reading from "../told.js";
import * as view from "../answer.js";
import * as parts from "./parts.js";

const MODES = [["add", "add"], ["set", "set to"]];

export const past = {
  ask: "past",
  graph: "pick",
  words: { cause: "cause", effect: "affected" },
  heading: "Pick causes",
  missing: (question) => (isWindow(question) ? "Move a slider: nothing is different yet." : NO_WINDOW),

  begin(plant, graph) {
    const unit = parts.defaultUnit(plant);
    const strength = (one) => graph?.edges.find(
      (edge) => edge.cause === one.name && edge.effect === unit
    )?.total_strength
      ?? 0;
    const [cause] = possibleCauses(plant).filter((one) => one.name !== unit).sort((a, b) => strength(b) - strength(a));
    return { unit, changes: [], ...firstWindow(plant), level: 0.95, draw: null, causes: cause ? [cause.name] : [] };
  },

  fit(told, plant, left) {
    const unit = reading.unitOf(told.unit, plant, parts.defaultUnit(plant), left);
    const changes = [];
    for (const one of reading.listOf(told.changes, "changes", left)) {
      const place = reading.inputOf(one, plant, left);
      if (place === null) continue;
      const of = `of ${place.unit} ${place.input}:`;
      const given = {
        mode: reading.wordOf(one.mode, ["set", "add"], "set", `the mode ${of}`, left), // without one: as for the server
        value: reading.numberOf(one.value, 0, `the value ${of}`, left),
        values: reading.valuesOf(one.values, `the values ${of}`, left),
      };
      if (!Object.values(given).includes(undefined)) changes.push({ ...place, ...given });
    }
    return {
      unit, changes, ...reading.windowOf(told, plant, firstWindow(plant), left),
      level: reading.levelOf(told.level, left), draw: reading.drawOf(told.draw, unit, plant, left),
      ...reading.worldOf(told, plant, left),
      causes: [...new Set(changes.map((one) => one.unit))],
    };
  },

  body(question) {
    const changes = question.changes.filter((one) => one.values || one.mode === "set" || one.value !== 0);
    const { unit, start, stop, level, draw } = question;
    const asked = changes.length || question.laws?.length;
    return asked && isWindow(question) ? { unit, changes, start, stop, level, draw, ...parts.worldBody(question) } : null;
  },

  picked: (question) => question.causes,
  affected: (question) => question.unit,

  toggle: togglesCause("changes"),

  controls(host, question, context) {
    const { plant } = context;
    windowPicker(context, question, context.changed);
    const modes = (question.modes ??= new Map(question.changes.map((one) => [`${one.unit}\n${one.input}`, one.mode])));
    const set = (unit, input, mode, value) => {
      question.changes = question.changes.filter((one) => one.unit !== unit || one.input !== input);
      if (value !== null && !(mode === "add" && value === 0)) question.changes.push(
        { unit, input, mode, value, values: null }
      );
    };
    put(
      host,
      make("h2", { text: "Had it been otherwise" }),
      causeGroups(plant, question.causes, {
        toggle: context.toggle,
        control: (unit, input) => {
          const id = `${unit.name}\n${input.name}`;
          const kind = modes.get(id) ?? "add";
          const value = question.changes.find((one) => one.unit === unit.name && one.input === input.name)?.value
            ?? (kind === "set" ? null : 0);
          return inputControl({
            unit: unit.name, input, kind, value, kinds: MODES, past: true,
            onInput: (next, when) => {
              set(unit.name, input.name, kind, next);
              context.changed(when);
            },
            onKind: (next) => {
              modes.set(id, next);
              set(unit.name, input.name, next, null);
              context.rebuild();
              context.changed(performance.now());
            },
          });
        },
      }),
      make("h2", { text: "See" }),
      parts.unitField("Affected", plant, question.unit, (name) => {
        Object.assign(question, { unit: name, draw: null });
        context.rebuild();
        context.changed(performance.now());
      }),
      make("div", { class: "row" }, parts.levelField(question, context.changed),
        parts.worldField(question, plant, context.changed)),
    );
  },

  show(answer, question, context) {
    const { plant } = context;
    const unit = plant.units.find((one) => one.name === question.unit);
    const drawn = answer.drawn.map((one) => one.channel);
    view.tools(JSON.stringify([question.unit, question.draw, drawn]), () => [
      view.chips(parts.channels(unit), question.draw, drawn, (draw) => {
        question.draw = draw;
        context.changed(performance.now());
      }),
    ]);
    const count = answer.stop - answer.start;
    const holes = jumps(answer.start, count, plant.calendar);
    const apart = (values) => broken(values, holes);
    const x = apart(parts.times(answer.start, count, plant.clock));
    const panels = answer.drawn.map((one) => ({
      title: parts.channelTitle(one), x,
      lines: [
        { role: "factual", name: "measured", y: apart(one.factual) },
        { role: "counterfactual", name: "would have been", y: apart(one.mean) }
      ],
      band: one.lower && one.upper
        ? { role: "counterfactual", lower: apart(one.lower), upper: apart(one.upper) } : null,
    }));
    const band = parts.bandText(answer.level, answer.drawn);
    view.key(
      [{ role: "factual", text: "measured" }, { role: "counterfactual", text: "would have been" }],
      band,
      "counterfactual"
    );
    parts.rankedTable(
      answer,
      {
        caption: `Most different in ${question.unit}`,
        whenTitle: "At",
        when: (one) => dateOf(one.row, plant.calendar) || point(one.row, plant.clock),
        noisy: plant.kind === "unit"
      }
    );
    parts.extra();
    return parts.plotPanels(
      panels,
      { band, xTitle: plant.calendar ? "" : timeTitle(plant.clock, "at time"), dates: parts.dates(plant), revision: `past ${answer.start} ${answer.stop} ${drawn}` }
    );
  },
};
