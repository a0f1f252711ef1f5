// Explain: why a window of the past was not as expected, as contributions that add up.
import { make, put } from "../dom.js";
import { number, quantity, timeTitle } from "../format.js";
import { NO_WINDOW, firstWindow, isWindow, windowPicker } from "../window.js";
import { stackFigure } from "../plots.js";
import * as reading from "../told.js";
import * as view from "../answer.js";
import * as parts from "./parts.js";

const ABOUT =
  "How far the measurements were from their usual level in the window, and what added to that: " +
  "every unit's inputs, what was before, and what nobody can explain.";

export const explain = {
  ask: "explain",
  graph: "show",
  words: { cause: "", effect: "explained" },
  heading: "Who acts on whom",
  missing: NO_WINDOW,

  begin(plant) {
    return { unit: parts.defaultUnit(plant), ...firstWindow(plant), draw: null };
  },

  fit(told, plant, left) {
    const unit = reading.unitOf(told.unit, plant, parts.defaultUnit(plant), left);
    const draw = reading.drawOf(told.draw === undefined || told.draw === null ? null : [told.draw], unit, plant, left);
    return {
      unit, ...reading.windowOf(told, plant, firstWindow(plant), left), draw: draw ? draw[0] : null,
      ...reading.worldOf(told, plant, left),
    };
  },

  body(question) {
    const { unit, start, stop, draw } = question;
    return isWindow(question) ? { unit, start, stop, draw, ...parts.worldBody(question) } : null;
  },

  picked: () => [],
  affected: (question) => question.unit,

  controls(host, question, context) {
    windowPicker(context, question, context.changed);
    put(
      host,
      make("h2", { text: "Explain" }),
      parts.unitField("Unit", context.plant, question.unit, (name) => {
        Object.assign(question, { unit: name, draw: null });
        context.rebuild();
        context.changed(performance.now());
      }),
      parts.worldField(question, context.plant, context.changed),
      make(
        "p",
        {
          class: "muted",
          text: ABOUT
        }
      ),
    );
  },

  show(answer, question, context) {
    const { plant } = context;
    const { drawn } = answer;
    const unit = plant.units.find((one) => one.name === answer.unit);
    view.tools(JSON.stringify([answer.unit, question.draw, drawn.channel]), () => [
      view.chips(parts.channels(unit), question.draw === null ? null : [question.draw], [drawn.channel], (draw) => {
        question.draw = draw;
        context.changed(performance.now());
      }, { auto: "Most departed", single: true }),
    ]);
    view.key(
      [...drawn.shares.map((share, area) => ({ area, text: share.label })), { sum: true, area: 0, text: "departure" }]
    );
    const order = new Map(drawn.shares.map((share, area) => [share.name, area]));
    const sides = answer.ranked.flatMap(
      ({ shares }) => [
        shares.reduce((all, one) => all + Math.max(one.value ?? 0, 0), 0),
        shares.reduce((all, one) => all + Math.max(-(one.value ?? 0), 0), 0)
      ]
    );
    const scaled = answer.ranked.map(
      ({ shares }, index) => (
        {
          list: shares.map((one) => ({ area: order.get(one.name) ?? 7, value: one.value ?? 0 })),
          most: Math.max(sides[2 * index], sides[2 * index + 1])
        }
      )
    );
    const rows = answer.ranked.map((one, index) => {
      const [largest] = [...one.shares].sort((a, b) => Math.abs(b.value ?? 0) - Math.abs(a.value ?? 0));
      return [
        one.channel,
        quantity(number(one.departure, null, true), one.measured_in),
        largest ? `${largest.label} (${number(largest.value, null, true)})` : "–",
        { parts: scaled[index], class: "with-parts" }
      ];
    });
    view.table(
      `Most departed in ${answer.unit}, means over the window`,
      ["Channel", ">Departure", "Largest share", "Shares, each row in its own scale"],
      rows
    );
    parts.extra();
    const x = parts.times(answer.start, answer.stop - answer.start, plant.clock);
    return view.plot(
      (width) => stackFigure({
        x,
        shares: drawn.shares,
        sum: drawn.departure,
        sumName: "departure",
        title: `${parts.channelTitle(drawn)}: departure and its shares`,
        width,
        xTitle: plant.calendar ? "" : timeTitle(plant.clock, "at time"),
        dates: parts.dates(plant)
      })
    );
  },
};
