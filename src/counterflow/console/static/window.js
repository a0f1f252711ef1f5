// A window of the past, picked on the plot of one's own measurements or by two numbers.
import { Gone, get, seatPath } from "./api.js";
import { byId, make, put, readField, select } from "./dom.js";
import { colour, panelsFigure, plain, show } from "./plots.js";
import { clockOf, dateOf, prose, quantity, rowOf, stepsOf, timeTitle } from "./format.js";

const BACKWARDS = "The window ends before it begins: move one of its ends, or type how long it is, such as 2h.";
const STILL = 250; // ms without typing before the server is asked what a text means

/** Whether a window can be asked about. */
export function isWindow({ start, stop, trouble }) {
  return stop > start && !trouble;
}

/** What is said in place of an answer while it cannot. */
export const NO_WINDOW = "This answer is of another window: the one typed above cannot be asked about.";

const fetched = new Map(); // seat and channel -> log

/** A window to begin with: the last tenth of the rows, at most 120 of them. */
export function firstWindow(plant) {
  const rows = plant.rows ?? 0;
  const width = Math.max(1, Math.min(120, Math.floor(rows / 10)));
  return { start: Math.max(0, rows - width), stop: rows };
}

/**
 * Build the picker in its place above the answer.
 * @param {object} context of the page: seat, plant
 * @param {object} question with start and stop (rows); written to
 * @param {(when: number) => void} changed
 */
export function windowPicker(context, question, changed) {
  const { plant, seat } = context;
  const { step, unit } = plant.clock;
  const own = plant.units.find((one) => one.name === (question.unit ?? plant.unit));
  const channels = (own?.outputs ?? []).map((output) => output.name);
  const place = byId("window-place");
  place.hidden = false;
  if (!channels.includes(context.logChannel)) context.logChannel = channels[0] ?? null;
  const known = plant.rows !== null && plant.rows !== undefined;
  const shown = (row) => plant.calendar ? clockOf(row, plant.calendar) : String(timeOf(row, step));
  const read = (text) => rowOf(text, plant.calendar, plant.rows) ?? stepsOf(text, plant.clock, plant.dt);
  const within = (row) => (row !== null && row >= 0 && (!known || row < plant.rows) ? row : null);
  const readLast = (text) => { // a duration with its unit counts from the start on
    const found = read(text);
    return within(isLength(text) && found > 0 ? question.start + found - 1 : found);
  };
  delete question.trouble;
  let doubts = 0;
  const dated = (more) => ({ title: plant.calendar ? `a date such as 2024-11-01 14:00, or ${more}` : null });
  const from = readField(
    "window-start", shown(question.start), (text) => within(read(text)), (row, when) => move({ start: row }, when), {
      ...dated("a time since the first row"), "aria-describedby": "window-trouble",
      unread: (text) => doubt(from, text, { start: text }, ({ start }) => ({ start })),
    }
  );
  const to = readField( // both ends belong to the window, as in the sentence
    "window-stop", shown(question.stop - 1), readLast, (row, when) => move({ stop: row + 1 }, when), {
      ...dated("how long it is, such as 2h"), "aria-describedby": "window-trouble",
      unread: (text) => doubt(to, text, { start: question.start, stop: text }, ({ stop }) => ({
        stop: Math.min(isLength(text) ? stop : stop + 1, plant.rows ?? Infinity),
      })),
    }
  );
  const trouble = make("p", { class: "field-trouble", id: "window-trouble", role: "alert", hidden: true });
  const wide = plant.calendar ? "field" : "field short";
  const measured = unit === "steps" ? "row" : unit;
  const rows = make("span", { class: "muted", id: "window-rows" });
  const element = make(
    "div", { id: "log-plot", class: "plot", role: "img", "aria-label": "Own measurements; drag to pick the window" }
  );

  function tell(text) {
    trouble.textContent = text;
    trouble.hidden = !text;
    if (text) question.trouble = text;
    else delete question.trouble;
  }
  /** What the page cannot read itself is asked of the library, whose words say what is wrong. */
  function doubt(field, text, asked, change) {
    doubts += 1;
    const mine = doubts;
    setTimeout(async () => {
      if (mine !== doubts) return;
      try {
        const told = await get(seatPath(seat, `rows?${new URLSearchParams(asked)}`));
        if (mine === doubts && field.isConnected) move(change(told), performance.now());
      } catch (problem) {
        if (mine !== doubts || !field.isConnected || problem instanceof Gone) return;
        tell(prose(problem.message));
        field.setAttribute("aria-invalid", "true");
        changed(performance.now());
      }
    }, STILL);
  }
  function move(change, when) {
    doubts += 1;
    Object.assign(question, change);
    const wrong = question.stop <= question.start;
    tell(wrong ? BACKWARDS : "");
    for (const one of [from, to]) one.setAttribute("aria-invalid", String(wrong));
    tellRows();
    outline();
    changed(when);
  }
  function tellRows() {
    const { start, stop } = question;
    const dates = `${clockOf(start, plant.calendar)} to ${dateOf(stop - 1, plant.calendar)}`;
    const numbers = step === 1 || stop <= start ? "" : `Rows ${start} to ${stop - 1}.`;
    rows.textContent = plant.calendar && stop > start ? `${numbers} ${dates}.`.trim() : numbers;
  }
  async function drawLog() {
    const channel = context.logChannel;
    if (channel === null) return;
    const id = `${seat}\n${channel}`;
    try {
      if (!fetched.has(id)) fetched.set(
        id, await get(seatPath(seat, `log?channel=${encodeURIComponent(channel)}&points=800`))
      );
    } catch (problem) {
      put(element, make("p", { class: "muted", text: problem.message }));
      return;
    }
    if (context.logChannel !== channel || !element.isConnected) return;
    const log = fetched.get(id);
    const drawn = await show(
      element, () => figure(log, question, plant, Math.max(260, element.parentElement.clientWidth - 24))
    );
    if (drawn && !element.listening) {
      element.listening = true;
      element.on("plotly_selected", (event) => {
        if (!event?.range?.x) return;
        const [left, right] = event.range.x.map((x) => Math.round(x / step));
        const last = known ? plant.rows - 1 : Infinity;
        const start = Math.min(Math.max(0, left), last);
        const stop = Math.min(Math.max(right, start), last) + 1;
        from.value = shown(start);
        to.value = shown(stop - 1);
        move({ start, stop }, performance.now());
      });
    }
  }
  function outline() {
    if (element.wanted && window.Plotly) show(element, element.wanted);
  }
  put(
    place,
    make(
      "div", { class: "row" },
      make(
        "div",
        { class: "field" },
        make("label", { for: "log-channel", text: "Measured" }),
        select(
          "log-channel",
          channels.map((name) => [name, name]),
          context.logChannel,
          (name) => ((context.logChannel = name), drawLog())
        )
      ),
      make(
        "div",
        { class: wide },
        make("label", { for: "window-start", text: plant.calendar ? "From" : `From (${measured})` }),
        from
      ),
      make(
        "div",
        { class: wide },
        make("label", { for: "window-stop", text: plant.calendar ? "to, included" : `to, included (${measured})` }),
        to
      ),
      rows,
      make(
        "span",
        {
          class: "muted grow",
          text: known ? `Drag over the plot, or type. The log has ${plant.rows} rows.` : "Drag over the plot, or type."
        }
      ),
    ),
    trouble,
    element,
  );
  tellRows();
  drawLog();
}

/** Whether a text tells how long and not when: a number with a unit of time. */
function isLength(text) {
  return /^\s*(\d[\d.,\s]*[a-zµ]+\.?\s*)+$|^\s*P/i.test(text) && !/\d{4}-/.test(text);
}

/** The time of a row, without the dust of binary fractions. */
function timeOf(row, step) {
  return Number((row * step).toPrecision(12));
}

function figure(log, question, plant, width) {
  const { clock, calendar } = plant;
  const dates = calendar ? (x) => clockOf(Math.round(x / clock.step), calendar) : null;
  const x = log.row.map((row) => row * clock.step);
  const title = quantity(log.channel, log.measured_in ? `(${log.measured_in})` : "");
  const middle = log.low.map((low, k) => (low === null || log.high[k] === null ? null : (low + log.high[k]) / 2));
  const thick = log.low.some((low, k) => low !== log.high[k]);
  const panel = {
    title,
    x,
    lines: [{ role: "factual", name: log.channel, y: middle }],
    band: thick ? { role: "factual", lower: log.low, upper: log.high } : null
  };
  const { data, layout } = panelsFigure([panel], { width, dates, xTitle: dates ? "" : timeTitle(clock, "at time") });
  data.at(-1).line.width = thick ? 0.8 : 1;
  Object.assign(
    layout,
    {
      height: 150, margin: { l: 52, r: 18, t: 0, b: 38 }, dragmode: "select", selectdirection: "h", hovermode: "x",
      selections: [], uirevision: `log ${log.channel}`, selectionrevision: Math.random()
    }
  );
  layout.xaxis.fixedrange = true;
  Object.assign(layout.yaxis, { domain: [0, 0.84], nticks: 3, fixedrange: true });
  layout.annotations[0].text = plain(title);
  layout.annotations[0].y = 1;
  layout.newselection = { line: { color: colour("--orange"), width: 1 } };
  layout.shapes = [
    {
      type: "rect",
      xref: "x",
      yref: "paper",
      x0: question.start * clock.step,
      x1: Math.max(question.start, question.stop - 1) * clock.step,
      y0: 0,
      y1: 0.84,
      fillcolor: colour("--orange", 0.22),
      line: { color: colour("--orange"), width: 1 }
    }
  ];
  return { data, layout };
}

export function forgetLogs() {
  fetched.clear();
}
