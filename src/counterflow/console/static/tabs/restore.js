// Restore: which inputs to move so that outputs reach a target.
import { field, make, numberField, put } from "../dom.js";
import { number, quantity, span } from "../format.js";
import { possibleCauses } from "../causes.js";
import * as view from "../answer.js";
import * as parts from "./parts.js";

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

  fit(told, plant) {
    const unit = plant.unit ?? (
      plant.units.some((one) => one.name === told.unit) ? told.unit : parts.defaultUnit(plant)
    );
    const outputs = plant.units.find((one) => one.name === unit).outputs.map((output) => output.name);
    const target = Object.fromEntries(
      Object.entries(told.target ?? {}).filter(([name, value]) => outputs.includes(name) && Number.isFinite(value))
    );
    const using = [];
    for (const one of Array.isArray(told.using) ? told.using : []) {
      const owner = plant.units.find((other) => other.name === one?.unit);
      const inputs = (Array.isArray(one?.inputs) ? one.inputs : []).filter(
        (name) => owner?.inputs.some((input) => input.name === name)
      );
      if (inputs.length) using.push({ unit: owner.name, inputs });
    }
    return { unit, target, using, horizon: parts.whole(told.horizon, 1, parts.LONGEST, 50) };
  },

  body({ unit, target, using, horizon }) {
    return Object.keys(target).length && using.length ? { unit, target, using, horizon } : null;
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
      make("div", { class: "row" }, parts.horizonField(question, plant, context.changed)),
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
      if (wanted !== null) lines.push({ role: "target", name: "target", x: [x[0], x.at(-1)], y: [wanted, wanted] });
      return {
        title: parts.channelTitle(one),
        x,
        zero: true,
        lines,
        band: one.lower && one.upper ? { role: "change", lower: one.lower, upper: one.upper } : null
      };
    });
    view.key(
      [{ role: "change", text: "change of the channel" }, { role: "target", text: "target" }],
      panels.some((one) => one.band) ? "band" : null,
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
        xTitle: parts.timeTitle(plant.clock, "time from now"),
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
    effect: question.unit, horizon: answer.horizon, level: 0.95, draw: answer.channels.map((one) => one.channel),
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
