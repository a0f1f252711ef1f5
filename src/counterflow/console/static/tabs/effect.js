// What if: change inputs of some units, see what happens at another.
import { byId, choices, make, field, put } from "../dom.js";
import { causeGroups, possibleCauses, togglesCause } from "../causes.js";
import { inputControl } from "../sliders.js";
import { changesFromCsv, isZero, preview } from "../schedule.js";
import { span, tidy, timeTitle } from "../format.js";
import { post, seatPath } from "../api.js";
import * as reading from "../told.js";
import * as view from "../answer.js";
import * as parts from "./parts.js";

const SHAPES = [["step", "Step"], ["pulse", "Pulse"], ["ramp", "Ramp"], ["series", "File"]];
const MANY = 6; // units told apart under "through whom"
const LITTLE = 0.01; // of the largest way: what is below is nothing to speak of
const STILL = 300; // ms without a change before "through whom" is asked

let withBaseline = false;
let waiting = null;

export const effect = {
  ask: "effect",
  graph: "pick",
  words: { cause: "cause", effect: "affected" },
  heading: "Pick causes",
  missing: (question) => (
    commonShape(question) === "series" ? "Choose a file: there is no change." : "Move a slider: there is no change yet."
  ),

  /** A question to begin with: the strongest cause's first input moved by a tenth of its seen width. */
  begin(plant, graph) {
    const affected = parts.defaultUnit(plant);
    const causes = possibleCauses(plant);
    const strength = (unit) => graph?.edges.find(
      (edge) => edge.cause === unit.name && edge.effect === affected
    )?.total_strength ?? 0;
    const others = causes.filter((unit) => unit.name !== affected);
    const cause = [...(others.length ? others : causes)].sort((a, b) => strength(b) - strength(a))[0];
    const question = {
      effect: affected, changes: [], horizon: 60, level: 0.95, draw: null, causes: cause ? [cause.name] : []
    };
    const input = cause?.inputs.find((one) => one.allowed);
    if (input) {
      const width = input.seen
        ? input.seen[1] - input.seen[0]
        : input.limits?.every(Number.isFinite)
        ? input.limits[1] - input.limits[0]
        : 10;
      let size = tidy(width / 12);
      const top = Math.min(input.limits?.[1] ?? Infinity, input.seen?.[1] ?? Infinity);
      if (Number.isFinite(input.last) && input.last + size > top) size = -size; // rather where the plant has been
      question.changes.push(change(cause.name, input.name, { size }));
    }
    return question;
  },

  /** A question from a link, made whole: what this plant does not have is left out and said. */
  fit(told, plant, left) {
    const affected = reading.unitOf(told.effect, plant, parts.defaultUnit(plant), left);
    const changes = [];
    for (const one of reading.listOf(told.changes, "changes", left)) {
      const place = reading.inputOf(one, plant, left);
      if (place === null) continue;
      const of = `of ${place.unit} ${place.input}:`;
      const given = {
        shape: reading.wordOf(one.shape, SHAPES.map(([name]) => name), "step", `the shape ${of}`, left),
        size: reading.numberOf(one.size, 0, `the size ${of}`, left),
        start: reading.wholeOf(one.start, 0, parts.LONGEST - 1, 0, `the start ${of}`, left),
        length: reading.wholeOf(one.length, 1, parts.LONGEST, null, `the length ${of}`, left),
        values: reading.valuesOf(one.values, `the values ${of}`, left),
      };
      if (!Object.values(given).includes(undefined)) changes.push(change(place.unit, place.input, given));
    }
    return {
      effect: affected, changes, horizon: reading.wholeOf(told.horizon, 1, parts.LONGEST, 60, "horizon", left),
      level: reading.levelOf(told.level, left), draw: reading.drawOf(told.draw, affected, plant, left),
      ...reading.worldOf(told, plant, left),
      causes: [...new Set(changes.map((one) => one.unit))],
    };
  },

  body(question) {
    const changes = question.changes.filter((one) => !isZero(one));
    if (!changes.length) return null;
    const { effect: affected, horizon, level, draw } = question;
    return { effect: affected, changes, horizon, level, draw, ...parts.worldBody(question) };
  },

  picked: (question) => question.causes,
  affected: (question) => question.effect,

  toggle: togglesCause("changes"),

  controls(host, question, context) {
    const { plant } = context;
    const { clock } = plant;
    const shape = commonShape(question);
    const look = make("div", { class: "preview-place" });
    const redraw = () => preview(look, question.changes, question.horizon, clock);
    const changed = (when) => {
      redraw();
      context.changed(when);
    };
    const rebuild = (when) => {
      context.rebuild();
      context.changed(when);
    };
    const groups = shape === "series" ? filePicker(question, context, rebuild) : causeGroups(plant, question.causes, {
      toggle: context.toggle,
      control: (unit, input) => inputControl({
        unit: unit.name, input, kind: "change", value: find(question, unit.name, input.name)?.size ?? 0,
        onInput: (size, when) => {
          setSize(question, unit.name, input.name, size);
          changed(when);
        },
      }),
    });
    const options = shape === "mixed" ? [["mixed", "Mixed"], ...SHAPES] : SHAPES;
    put(
      host,
      make("h2", { text: "Change" }),
      groups,
      make("div", { class: "row" }, choices("shape", "Shape of the change", options, shape, (next) => {
        reshape(question, next);
        rebuild(performance.now());
      }), ...timing(question, shape, plant, changed)),
      look,
      make("h2", { text: "See" }),
      parts.unitField("Affected", plant, question.effect, (name) => {
        Object.assign(question, { effect: name, draw: null });
        rebuild(performance.now());
      }),
      make("div", { class: "row" }, parts.horizonField(question, plant, changed), parts.levelField(question, changed),
        parts.worldField(question, plant, changed)),
    );
    redraw();
  },

  show(answer, question, context) {
    const { plant } = context;
    const { clock } = plant;
    const unit = plant.units.find((one) => one.name === answer.effect);
    const possible = answer.drawn.some((one) => one.baseline !== null);
    const both = withBaseline && possible;
    const drawn = answer.drawn.map((one) => one.channel);
    const views = [["change", "Change"], ["both", "With baseline"]];
    view.tools(JSON.stringify([answer.effect, question.draw, drawn, possible, both]), () => [
      view.chips(parts.channels(unit), question.draw, drawn, (draw) => {
        question.draw = draw;
        context.changed(performance.now());
      }),
      possible ? choices("baseline", "What is drawn", views, both ? "both" : "change", (next) => {
        withBaseline = next === "both";
        effect.show(answer, question, context);
      }) : null,
    ]);
    const x = parts.after(answer.horizon, clock);
    const panels = answer.drawn.map((one) => (both && one.baseline ? together(one, x) : alone(one, x)));
    const band = parts.bandText(answer.level, answer.drawn);
    if (both) view.key(
      [{ role: "baseline", text: "expected without the change" }, { role: "counterfactual", text: "with the change" }],
      band,
      "counterfactual"
    );
    else view.key([{ role: "change", text: "change of the channel" }], band, "change");
    parts.rankedTable(
      answer,
      {
        caption: `Most affected in ${answer.effect}`,
        whenTitle: "After",
        when: (one) => span(one.steps, clock),
        noisy: plant.kind === "unit"
      }
    );
    paths(answer, question, context);
    return parts.plotPanels(
      panels,
      {
        band,
        xTitle: timeTitle(clock, "time from now"),
        revision: `effect ${both} ${answer.horizon} ${answer.drawn.map((one) => one.channel)}`
      }
    );
  },
};

function change(unit, input, given) {
  return { unit, input, shape: "step", size: 0, start: 0, length: null, values: null, ...given };
}

function find(question, unit, input) {
  return question.changes.find((one) => one.unit === unit && one.input === input);
}

function setSize(question, unit, input, size) {
  const old = find(question, unit, input);
  if (old) {
    old.size = size;
    return;
  }
  const { shape, start, length } = question.changes.find((one) => one.shape !== "series") ?? question.timing
    ?? change();
  question.changes.push(change(unit, input, { shape, start, length, size }));
}

function commonShape(question) {
  const shapes = new Set(question.changes.map((one) => one.shape));
  if (!shapes.size) return question.timing?.shape ?? "step";
  return shapes.size === 1 ? [...shapes][0] : "mixed";
}

/** All changes take the shape; from a file, the sliders come back at zero. */
function reshape(question, shape) {
  if (shape === "mixed") return;
  const { start, length } = timingOf(question);
  const wanted = {
    shape,
    start: shape === "series" ? 0 : start,
    length: shape === "pulse" || shape === "ramp" ? length ?? Math.max(1, Math.round(question.horizon / 6)) : null
  };
  question.timing = wanted;
  if (shape === "series") question.changes = [];
  else question.changes = question.changes.filter((one) => one.shape !== "series").map(
    (one) => ({ ...one, ...wanted, values: null })
  );
}

function timingOf(question) {
  return question.changes[0] ?? question.timing ?? { shape: "step", start: 0, length: null };
}

function timing(question, shape, plant, changed) {
  if (shape === "series") return [];
  const { start, length } = timingOf(question);
  const put_all = (given, when) => {
    for (const one of question.changes) Object.assign(one, given);
    question.timing = { ...timingOf(question), ...given };
    changed(when);
  };
  const { unit } = plant.clock;
  const begin = parts.durationField(
    "start", start, 0, parts.LONGEST - 1, plant, (steps, when) => put_all({ start: steps }, when)
  );
  const list = [make("div", { class: "field short" }, make("label", { for: "start", text: `Start (${unit})` }), begin)];
  if (shape === "pulse" || shape === "ramp") {
    const long = parts.durationField(
      "length", length ?? 1, 1, parts.LONGEST, plant, (steps, when) => put_all({ length: steps }, when)
    );
    list.push(make("div", { class: "field short" }, make("label", { for: "length", text: `Length (${unit})` }), long));
  }
  return list;
}

function filePicker(question, context, rebuild) {
  const problem = make("p", { class: "warns", role: "alert", id: "file-error", text: question.fileProblem ?? "" });
  const picker = make("input", {
    type: "file", accept: ".csv,text/csv", id: "schedule-file",
    on: {
      change: async () => {
        const [file] = picker.files;
        if (!file) return;
        try {
          question.changes = changesFromCsv(await file.text(), context.plant.units);
          question.causes = [...new Set(question.changes.map((one) => one.unit))];
          question.fileProblem = "";
        } catch (caught) {
          question.changes = []; // what is shown was not asked with this file: it is greyed
          question.fileProblem = `${file.name}: ${caught.message}`;
        }
        rebuild(performance.now());
      },
    },
  });
  const read = question.changes.map(
    (one) => make("li", { text: `${one.unit}: ${one.input}, ${one.values?.length ?? 0} steps` })
  );
  return make(
    "div", { class: "file-picker" }, field("Schedule (CSV)", picker),
    make(
      "p",
      {
        class: "muted",
        text: "The header names inputs, as in boiler.fuel; one row a step holds changes; after the last there are none."
          + " With semicolons between columns, decimal commas are read too."
      }
    ),
    problem, read.length ? make("ul", { class: "plain" }, ...read) : null,
  );
}

function alone(one, x) {
  return {
    title: parts.channelTitle(one),
    x,
    zero: true,
    lines: [{ role: "change", name: "change of the channel", y: one.mean }],
    band: one.lower && one.upper ? { role: "change", lower: one.lower, upper: one.upper } : null
  };
}

function together(one, x) {
  const { baseline } = one;
  return {
    title: parts.channelTitle(one), x,
    lines: [
      { role: "baseline", name: "expected without the change", y: baseline },
      { role: "counterfactual", name: "with the change", y: parts.sum(baseline, one.mean) }
    ],
    band: one.lower && one.upper ? {
      role: "counterfactual", lower: parts.sum(baseline, one.lower), upper: parts.sum(baseline, one.upper)
    } : null,
  };
}

/** Through whom: asked when the question has been still for a while, of one cause only. */
function paths(answer, question, context) {
  clearTimeout(waiting);
  const place = byId("extra");
  const allowed = context.plant.questions.paths;
  if (answer.causes.length !== 1 || answer.causes[0] === answer.effect) return put(place);
  if (allowed && !allowed.allowed) return put(place, card(make("p", { class: "muted", text: allowed.reason })));
  place.classList.add("stale");
  waiting = setTimeout(async () => {
    const body = effect.body(question);
    // there may be a second cause by now, whose answer is still under way
    if (body === null || body.changes.some((one) => one.unit !== answer.causes[0])) return;
    const asked = JSON.stringify(body);
    delete body.level;
    try {
      const told = await post(seatPath(context.seat, "paths"), body);
      const now = effect.body(question);
      if (!context.isCurrent("effect", question) || JSON.stringify(now) !== asked) return;
      put(place, card(...pathBars(told, context.plant.clock)));
    } catch (problem) {
      if (context.isCurrent("effect", question)) put(place, card(make("p", { class: "muted", text: problem.message })));
    }
    place.classList.remove("stale");
  }, STILL);
  return undefined;
}

function card(...children) {
  return make("section", { class: "card", id: "paths" }, make("h2", { text: "Through whom" }), ...children);
}

function pathBars(told, clock) {
  const at = told.total.reduce(
    (best, value, k) => (Math.abs(value ?? 0) > Math.abs(told.total[best] ?? 0) ? k : best), 0
  );
  const ways = told.through.map(
    ({ unit, values }) => ({ unit, label: `through ${unit}`, value: values[at] ?? 0 })
  ).sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const [direct, total] = [told.direct[at] ?? 0, told.total[at] ?? 0];
  const most = [direct, total, ...ways.map((one) => one.value)].reduce((a, b) => Math.max(a, Math.abs(b)), 0);
  const through = ways.filter((one) => Math.abs(one.value) >= LITTLE * most && one.value !== 0);
  const little = ways.filter((one) => !through.includes(one)).map((one) => one.unit);
  if (through.length > MANY) {
    const rest = through.splice(MANY - 1);
    through.push({ label: `through ${rest.length} others`, value: rest.reduce((all, one) => all + one.value, 0) });
  }
  const rows = [
    { label: "direct", value: direct },
    ...through,
    { label: "in all", value: total, strong: true }
  ];
  return [
    make("p", { class: "muted", text: `${told.channel}, ${span(at + 1, clock)} after the start` }),
    parts.signedBars(rows, told.measured_in),
    little.length
      ? make("p", {
        class: "muted", id: "little", title: little.join(", "),
        text: `${little.length === 1 ? `through ${little[0]}` : `${little.length} others`}: nothing to speak of`,
      })
      : null,
  ];
}
