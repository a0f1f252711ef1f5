// Forecast: what is expected from now on, with inputs held at planned values.
import { make, put } from "../dom.js";
import { causeGroups, possibleCauses, togglesCause } from "../causes.js";
import { inputControl } from "../sliders.js";
import { measured, number, percent, quantity, span, timeTitle } from "../format.js";
import * as reading from "../told.js";
import * as view from "../answer.js";
import * as parts from "./parts.js";

export const forecast = {
  ask: "forecast",
  graph: "pick",
  words: { cause: "planned", effect: "forecast" },
  heading: "Pick units to plan",
  missing: "Choose a horizon.",

  begin(plant) {
    const unit = parts.defaultUnit(plant);
    const causes = possibleCauses(plant).some((one) => one.name === unit) ? [unit] : [];
    return { unit, plan: [], horizon: 60, level: 0.95, draw: null, causes };
  },

  fit(told, plant, left) {
    const unit = reading.unitOf(told.unit, plant, parts.defaultUnit(plant), left);
    const plan = [];
    for (const one of reading.listOf(told.plan, "the plan", left)) {
      const place = reading.inputOf(one, plant, left);
      const value = place && reading.numberOf(one.value, undefined, `the value of ${place.unit} ${place.input}:`, left);
      if (place && value !== undefined) plan.push({ ...place, value });
    }
    return {
      unit, plan, horizon: reading.wholeOf(told.horizon, 1, parts.LONGEST, 60, "horizon", left),
      level: reading.levelOf(told.level, left), draw: reading.drawOf(told.draw, unit, plant, left),
      ...reading.worldOf(told, plant, left),
      causes: [...new Set(plan.map((one) => one.unit))],
    };
  },

  body(question) {
    const { unit, plan, horizon, level, draw } = question;
    return { unit, plan, horizon, level, draw, ...parts.worldBody(question) };
  },

  picked: (question) => question.causes,
  affected: (question) => question.unit,

  toggle: togglesCause("plan"),

  controls(host, question, context) {
    const { plant } = context;
    put(
      host,
      make("h2", { text: "Plan" }),
      make("p", { class: "muted", text: "Inputs that are not moved stay at their last value." }),
      causeGroups(plant, question.causes, {
        noun: "unit",
        toggle: context.toggle,
        control: (unit, input) => inputControl({
          unit: unit.name, input, kind: "set",
          value: question.plan.find((one) => one.unit === unit.name && one.input === input.name)?.value ?? null,
          onInput: (value, when) => {
            question.plan = question.plan.filter((one) => one.unit !== unit.name || one.input !== input.name);
            if (value !== null) question.plan.push({ unit: unit.name, input: input.name, value });
            context.changed(when);
          },
        }),
      }),
      make("h2", { text: "See" }),
      parts.unitField("Unit", plant, question.unit, (name) => {
        Object.assign(question, { unit: name, draw: null });
        context.rebuild();
        context.changed(performance.now());
      }),
      make(
        "div",
        { class: "row" },
        parts.horizonField(question, plant, context.changed),
        parts.levelField(question, context.changed),
        parts.worldField(question, plant, context.changed)
      ),
    );
  },

  show(answer, question, context) {
    const { plant } = context;
    const { clock } = plant;
    const unit = plant.units.find((one) => one.name === question.unit);
    const drawn = answer.drawn.map((one) => one.channel);
    view.tools(JSON.stringify([question.unit, question.draw, drawn]), () => [
      view.chips(parts.channels(unit), question.draw, drawn, (draw) => {
        question.draw = draw;
        context.changed(performance.now());
      }, { auto: "Automatic" }),
    ]);
    const x = parts.times(answer.first_row, answer.horizon, clock);
    const panels = answer.drawn.map((one) => ({
      title: parts.channelTitle(one), x,
      lines: [
        { role: "factual", name: "measured", x: one.recent.row.map((row) => row * clock.step), y: one.recent.value },
        { role: "forecast", name: "expected", y: one.mean }
      ],
      band: one.lower && one.upper ? { role: "forecast", lower: one.lower, upper: one.upper } : null,
    }));
    const band = parts.bandText(answer.level, answer.drawn);
    view.key(
      [{ role: "factual", text: "measured" }, { role: "forecast", text: "expected" }],
      band,
      "forecast"
    );
    const level = answer.level ? `${percent(answer.level)} interval` : null;
    view.table(
      `Expected of ${question.unit}`,
      ["Channel", ">Last measured", ">Next", `>In ${span(answer.horizon, clock)}`, ...(level ? [`>${level}`] : [])],
      answer.ranked.map((one) => {
        const { value, interval } = measured(one.end, one.lower, one.upper, one.measured_in);
        return [
          one.channel,
          quantity(number(one.last_measured), one.measured_in),
          quantity(number(one.next), one.measured_in),
          value,
          ...(level ? [interval || "–"] : [])
        ];
      }),
    );
    parts.extra();
    return parts.plotPanels(
      panels,
      {
        band,
        xTitle: plant.calendar ? "" : timeTitle(clock, "at time"),
        dates: parts.dates(plant),
        marks: [(answer.first_row - 0.5) * clock.step],
        revision: `forecast ${answer.horizon} ${drawn}`
      }
    );
  },
};
