// Restore: which inputs to move so that outputs reach a target.
import { field, make, numberField, put } from "../dom.js";
import { number, quantity, span, timeTitle } from "../format.js";
import { possibleCauses } from "../causes.js";
import * as reading from "../told.js";
import * as view from "../answer.js";
import * as parts from "./parts.js";

const LEVEL = 0.95; // of the band, which the question does not choose

export const restore = {
  ask: "restore",
  graph: "pick",
  words: { cause: "lever", effect: "target" },
  heading: "Pick levers",
  missing: "Enter a target for at least one channel and tick at least one lever.",

  begin(plant) {
    const unit = parts.defaultUnit(plant);
    const using = possibleCauses(plant).filter((one) => one.name !== unit).map(
      (one) => ({ unit: one.name, inputs: one.inputs.filter((input) => input.allowed).map((input) => input.name) })
    );
    return { unit, target: {}, using, horizon: 50 };
  },

  fit(told, plant, left) {
    const unit = reading.unitOf(told.unit, plant, parts.defaultUnit(plant), left);
    const target = {};
    for (const [channel, wanted] of Object.entries(told.target ?? {})) {
      if (reading.drawOf([channel], unit, plant, left) === null) continue;
      const value = reading.numberOf(wanted, undefined, `the target of ${channel}:`, left);
      if (value !== undefined) target[channel] = value;
    }
    const using = [];
    for (const one of reading.listOf(told.using, "the levers", left)) {
      const inputs = reading.listOf(one?.inputs, "the levers", left).filter(
        (input) => reading.inputOf({ unit: one.unit, input }, plant, left)
      );
      if (inputs.length) using.push({ unit: one.unit, inputs });
      else if (!Array.isArray(one?.inputs)) left.impossible("levers without inputs");
    }
    return {
      unit, target, using, horizon: reading.wholeOf(told.horizon, 1, parts.LONGEST, 50, "horizon", left),
      ...reading.worldOf(told, plant, left),
    };
  },

  body(question) {
    const { unit, target, using, horizon } = question;
    const asked = Object.keys(target).length && using.length;
    return asked ? { unit, target, using, horizon, ...parts.worldBody(question) } : null;
  },

  picked: (question) => question.using.map((one) => one.unit),
  affected: (question) => question.unit,

  /** All levers of the unit, or none. */
  toggle(question, name, plant) {
    if (question.using.some((one) => one.unit === name)) question.using = question.using.filter(
      (one) => one.unit !== name
    );
    else question.using = [
      ...question.using,
      {
        unit: name,
        inputs: plant.units.find((one) => one.name === name).inputs.filter((input) => input.allowed).map(
          (input) => input.name
        )
      }
    ];
  },

  controls(host, question, context) {
    const { plant } = context;
    const unit = plant.units.find((one) => one.name === question.unit);
    const targets = unit.outputs.map((output) => {
      const control = numberField(null, question.target[output.name] ?? "", (value, when) => {
        question.target = { ...question.target, [output.name]: value };
        context.changed(when);
      }, {
        step: "any", placeholder: "free", data: { target: output.name }, "aria-label": `Change wanted of ${output.name}`
      });
      control.addEventListener("input", (event) => {
        if (control.value !== "" || control.validity.badInput) return;
        control.setAttribute("aria-invalid", "false");
        const { [output.name]: _, ...rest } = question.target;
        question.target = rest;
        context.changed(event.timeStamp);
      });
      return make(
        "div",
        { class: "target" },
        field(output.name, control),
        make("span", { class: "unit", text: output.measured_in })
      );
    });
    const levers = plant.units.filter((one) => one.inputs.length).map(
      (one) => make(
        "fieldset",
        { class: "levers" },
        make("legend", { text: one.name }),
        ...one.inputs.map((input) => lever(question, one, input, context))
      )
    );
    put(
      host,
      make("h2", { text: "Target: change wanted" }),
      parts.unitField("Unit", plant, question.unit, (name) => {
        Object.assign(question, { unit: name, target: {} });
        context.rebuild();
        context.changed(performance.now());
      }),
      make("div", { class: "targets" }, ...targets),
      make("div", { class: "row" }, parts.horizonField(question, plant, context.changed),
        parts.worldField(question, plant, context.changed)),
      make("h2", { text: "Levers" }),
      ...levers,
    );
  },

  show(answer, question, context) {
    const { plant } = context;
    view.tools(
      JSON.stringify(answer.feasible),
      () => [
        make(
          "span",
          {
            class: `verdict ${answer.feasible ? "pass" : "caution"}`,
            id: "feasible",
            text: answer.feasible ? "Target reached" : "Target not reached"
          }
        )
      ]
    );
    const x = parts.after(answer.horizon, plant.clock);
    const panels = answer.drawn.map((one) => {
      const wanted = answer.channels.find((channel) => channel.channel === one.channel)?.target ?? null;
      const lines = [{ role: "change", name: "change", y: one.mean }];
      const ends = x.length > 1 ? [x[0], x.at(-1)] : [x[0] - plant.clock.step / 2, x[0] + plant.clock.step / 2];
      if (wanted !== null) lines.push({ role: "target", name: "target", x: ends, y: [wanted, wanted] });
      return {
        title: parts.channelTitle(one),
        x,
        zero: true,
        lines,
        band: one.lower && one.upper ? { role: "change", lower: one.lower, upper: one.upper } : null
      };
    });
    const band = parts.bandText(answer.level ?? LEVEL, answer.drawn);
    view.key(
      [{ role: "change", text: "change of the channel" }, { role: "target", text: "target" }],
      band,
      "change"
    );
    view.table(
      `Reached after ${span(answer.horizon, plant.clock)}`, ["Channel", ">Target", ">Reached", ">Missing"],
      answer.channels.map(
        (one) => [
          one.channel,
          quantity(number(one.target, null, true), one.measured_in),
          quantity(number(one.reached, null, true), one.measured_in),
          quantity(number(missing(one), null, true), one.measured_in)
        ]
      ),
    );
    parts.extra(
      make(
        "section", { class: "card", id: "levers" }, make("h2", { text: "Move these" }),
        make(
          "ul",
          { class: "moves" },
          ...answer.change.map(
            (one) => make(
              "li",
              { data: { move: `${one.unit}.${one.input}` } },
              make("span", { text: `${one.unit}: ${one.input}` }),
              make("strong", { class: "figure", text: quantity(number(one.change, null, true), one.measured_in) })
            )
          )
        ),
        make(
          "button",
          {
            type: "button",
            id: "as-what-if",
            text: "Ask this as a what-if",
            on: { click: () => context.open("effect", asEffect(answer, question)) }
          }
        ),
      ),
    );
    return parts.plotPanels(
      panels,
      {
        band,
        xTitle: timeTitle(plant.clock, "time from now"),
        revision: `restore ${answer.horizon} ${Object.keys(question.target)}`
      }
    );
  },
};

/** What is below the digits shown is not missing. */
function missing(one) {
  const gap = one.target - one.reached;
  return Math.abs(gap) < 1e-6 * Math.max(1, Math.abs(one.target)) ? 0 : gap;
}

function lever(question, unit, input, context) {
  const id = `lever-${unit.name}-${input.name}`.replace(/[^\w-]/g, "_");
  const box = make("input", {
    type: "checkbox", id, data: { lever: `${unit.name}.${input.name}` }, disabled: !input.allowed,
    checked: question.using.some((one) => one.unit === unit.name && one.inputs.includes(input.name)),
    on: {
      change: (event) => {
        const rest = question.using.map(
          (one) => (one.unit === unit.name ? { ...one, inputs: one.inputs.filter((name) => name !== input.name) } : one)
        );
        const mine = rest.find((one) => one.unit === unit.name);
        if (box.checked && mine) mine.inputs.push(input.name);
        else if (box.checked) rest.push({ unit: unit.name, inputs: [input.name] });
        question.using = rest.filter((one) => one.inputs.length);
        context.regraph();
        context.changed(event.timeStamp);
      },
    },
  });
  return make(
    "div",
    { class: "lever" },
    box,
    make("label", { for: id, text: input.name }),
    input.allowed ? null : make("span", { class: "warns", text: input.reason })
  );
}

function asEffect(answer, question) {
  return {
    effect: question.unit, horizon: answer.horizon, level: LEVEL, draw: answer.channels.map((one) => one.channel),
    changes: answer.change.filter((one) => one.change).map(
      (one) => (
        {
          unit: one.unit,
          input: one.input,
          shape: "step",
          size: Number(one.change.toPrecision(6)),
          start: 0,
          length: null,
          values: null
        }
      )
    ),
  };
}
