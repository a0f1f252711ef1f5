// Drawing with plotly.js. The library is large: it is fetched after the first answer is on the screen, as a sketch.
import { sketch } from "./sketch.js";
import { tidy } from "./format.js";
import { outline } from "./gaps.js";

let library = null;

/** Fetch plotly.js, once; running it keeps the browser busy for about a second, so what is there is painted first. */
export function plotly() {
  library ??= painted().then(fetchLibrary);
  return library;
}

function painted() {
  return new Promise((resolve) => {
    requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(resolve, 0)));
    setTimeout(resolve, 500); // a page in the background is not painted
  });
}

function fetchLibrary() {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/static/plotly.min.js";
    script.async = true;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      library = null;
      script.remove();
      reject(new Error("The drawing library did not load."));
    };
    document.head.append(script);
  });
}

/** Text for plotly, which reads a few tags and $formulas$ in texts: names are data and stay what they are. */
export function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll("$", "&#36;");
}

/** As much of a text as has room in so many pixels. */
function fitting(text, room) {
  const most = Math.max(8, Math.floor(room / 6.8));
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

const probe = document.createElement("span");
probe.hidden = true;
let palette = null;

/** A colour of the style sheet as it is now, for example colour("--blue"). */
export function colour(name, alpha = 1) {
  if (palette === null) palette = new Map();
  if (!palette.has(name)) {
    if (!probe.isConnected) document.body.append(probe);
    probe.style.color = `var(${name})`;
    palette.set(name, getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number));
  }
  const [red, green, blue] = palette.get(name);
  return alpha === 1 ? `rgb(${red}, ${green}, ${blue})` : `rgba(${red}, ${green}, ${blue}, ${alpha})`;
}

/** The theme has changed. */
export function forgetColours() {
  palette = null;
}

const FEW = 3; // points of a line that are marked

const LINES = {
  change: { colour: "--blue", width: 2 },
  counterfactual: { colour: "--vermilion", width: 2 },
  factual: { colour: "--plot-ink", width: 1.4 },
  baseline: { colour: "--plot-ink", width: 1.6, dash: "dash" },
  forecast: { colour: "--blue", width: 2 },
  target: { colour: "--green", width: 1.6, dash: "dot" },
};

const AREAS = ["--blue", "--orange", "--green", "--purple", "--sky", "--vermilion", "--yellow", "--grey"];

/** The colours of lines and areas, for the key above a plot. */
export function lineStyle(role) {
  return LINES[role];
}
export function areaColour(index) {
  return AREAS[index % AREAS.length];
}

function axis(extra) {
  return {
    gridcolor: colour("--plot-grid"), zerolinecolor: colour("--plot-zero"), linecolor: colour("--plot-zero"),
    tickfont: { size: 11 },
    zeroline: false, ticks: "outside", ticklen: 3, tickcolor: colour("--plot-zero"), automargin: false,
    ticklabeloverflow: "allow", ...extra,
  };
}

const touch = matchMedia("(pointer: coarse)"); // there a finger on the plot scrolls the page

function frame(height, width, margin) {
  return {
    height, width, margin, showlegend: false, hovermode: "x unified", dragmode: touch.matches ? false : "zoom",
    uirevision: "keep",
    paper_bgcolor: colour("--panel"), plot_bgcolor: colour("--panel"),
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--plot-text") },
    hoverlabel: {
      bgcolor: colour("--panel"),
      bordercolor: colour("--line"),
      font: { size: 12, color: colour("--ink") },
      namelength: -1
    },
  };
}

const MINUTE = 60_000; // ms
const ROUND = [ // between two marks of an axis of dates
  1000, 2000, 5000, 10_000, 15_000, 30_000, ...[1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720].map((k) => k * MINUTE),
  ...[1, 2, 5, 7, 14, 30, 60, 90, 180, 365].map((k) => k * 1440 * MINUTE)
];

/** Places between first and last where clocks show round times; [] if there are fewer than two. */
function roundPlaces(first, last, most, dates) {
  const clock = (x) => Date.parse(`${dates(x).replace(" ", "T")}Z`); // as if it were UTC: only to count with
  const [begins, ends] = [clock(first), clock(last)];
  const apart = ROUND.find((size) => (ends - begins) / size < most);
  if (!(ends > begins) || apart === undefined) return [];
  const places = [];
  for (let time = Math.ceil(begins / apart) * apart; time <= ends; time += apart) {
    let place = first + ((last - first) * (time - begins)) / (ends - begins);
    if (clock(place) !== time) { // rows were left out, or clocks were changed
      let [low, high] = [first, last];
      for (let k = 0; k < 30; k += 1) {
        place = (low + high) / 2;
        if (clock(place) < time) low = place;
        else high = place;
      }
      place = high;
    }
    places.push(place);
  }
  return places.length > 1 ? places : [];
}

/** Where an axis of time has its marks: as the library thinks best, or at dates. */
function dated(series, most, dates) {
  const all = series.flatMap((x) => [x?.[0], x?.at(-1)]).filter((x) => Number.isFinite(x));
  if (!dates || !all.length) return { nticks: most };
  const [first, last] = [Math.min(...all), Math.max(...all)];
  const even = () => Array.from({ length: most }, (_, k) => first + ((last - first) * (k + 0.5)) / most);
  const found = roundPlaces(first, last, most, dates);
  const values = found.length ? found : even();
  const shown = values.map((x, k) => {
    const [text, before] = [dates(x), k ? dates(values[k - 1]) : ""];
    return text.slice(0, 10) === before.slice(0, 10) ? text.slice(11) : text.replace(" ", "<br>");
  });
  return { tickmode: "array", tickvals: values, ticktext: shown };
}

/**
 * Small multiples: one panel a channel, in one or two columns.
 * @param {object[]} panels {title, x, lines: [{role, name, x?, y}], band: {role, x?, lower, upper} or null, zero}
 * @param {object} given width (pixels of the place), xTitle, band (what the shade is, for pictures), marks ([x] drawn
 *   as vertical lines), revision, dates (x -> date, or null)
 */
export function panelsFigure(panels, { width, xTitle, band = null, marks = [], revision = "keep", dates = null }) {
  const columns = panels.length > 1 && width >= 560 ? 2 : 1;
  const rows = Math.ceil(panels.length / columns);
  const each = panels.length === 1 ? 296 : rows === 1 ? 262 : columns === 2 ? 172 : 160;
  const top = 22; // of a panel's title
  const gap = 32; // of the title below; only the last row has a scale of time
  const bottom = 40;
  const height = bottom + rows * each - (gap - top);
  const layout = {
    ...frame(height, width, { l: 52, r: 20, t: 0, b: bottom }), uirevision: revision, annotations: [], shapes: []
  };
  const inner = height - bottom;
  const data = [];
  const series = panels.flatMap((panel) => [panel.x, ...panel.lines.map((line) => line.x)]);
  const [plotWide, between] = [width - 72, columns === 2 ? 58 / (width - 72) : 0];
  panels.forEach((panel, index) => {
    const [row, column] = [Math.floor(index / columns), index % columns];
    const tag = index === 0 ? "" : String(index + 1);
    const left = column === 0 ? 0 : 0.5 + between / 2;
    const right = columns === 1 ? 1 : column === 0 ? 0.5 - between / 2 : 1;
    const from = row * each + top;
    const upper = 1 - from / inner;
    const lower = Math.max(0, 1 - (from + each - gap) / inner);
    const xTag = column === 0 ? "" : "2"; // a column shares its axis of time: axes are what costs time in a redraw
    if (index + columns >= panels.length) {
      layout[`xaxis${xTag}`] = axis({
        domain: [left, right],
        anchor: `y${tag}`,
        matches: column ? "x" : undefined,
        title: xTitle ? { text: plain(xTitle), standoff: 6, font: { size: 11 } } : undefined,
        ...dated(series, Math.max(3, Math.floor((plotWide * (right - left)) / (dates ? 120 : 90))), dates)
      });
    }
    layout[`yaxis${tag}`] = axis({
      domain: [lower, upper],
      anchor: `x${xTag}`,
      nticks: 5,
      zeroline: Boolean(panel.zero),
      rangemode: panel.zero ? "tozero" : "normal",
      tickformat: "~g",
      hoverformat: ".4~g"
    });
    layout.annotations.push({
      text: plain(fitting(panel.title, plotWide * (right - left))),
      showarrow: false,
      xref: "paper",
      yref: "paper",
      x: left,
      y: Math.min(1, upper + top / inner),
      xanchor: "left",
      yanchor: "top",
      font: { size: 12, color: colour("--ink") }
    });
    for (const mark of marks) layout.shapes.push({
      type: "line",
      xref: `x${xTag}`,
      yref: `y${tag} domain`,
      x0: mark,
      x1: mark,
      y0: 0,
      y1: 1,
      line: { color: colour("--plot-zero"), width: 1, dash: "dot" }
    });
    data.push(...tracesOf(panel, `x${xTag}`, `y${tag}`, band));
  });
  return { data, layout };
}

/** How points are joined; a few are marked too, since a line through one of them is nothing to see. */
function joined(x, shade) {
  return x.length > FEW ? { mode: "lines" } : { mode: "lines+markers", marker: { size: 7, color: shade } };
}

function tracesOf(panel, xaxis, yaxis, band) {
  const on = { type: "scatter", mode: "lines", xaxis, yaxis };
  const traces = [];
  if (panel.band) {
    const { role, lower, upper, x = panel.x } = panel.band;
    const shade = colour(LINES[role].colour, 0.18);
    const edge = {
      line: { width: x.length > 1 ? 0 : 10, color: shade }, fillcolor: shade, hoverinfo: "skip", showlegend: false,
      meta: band
    };
    traces.push({ ...on, ...edge, ...outline(x, lower, upper), name: "band", fill: "toself" });
  }
  for (const { role, name, y, x = panel.x } of panel.lines) {
    const { colour: shade, width, dash = "solid" } = LINES[role];
    const marked = role === "target" ? {} : joined(x, colour(shade));
    traces.push({
      ...on, ...marked, x, y, name: plain(name), line: { color: colour(shade), width, dash }, showlegend: yaxis === "y"
    });
  }
  return traces;
}

/**
 * Contributions stacked around zero, and their sum as a line. Positive and negative parts are stacks of their own.
 * @param {object} given x, shares ([{label, values}]), sum, sumName, title, width, xTitle
 */
export function stackFigure({ x, shares, sum, sumName, title, width, xTitle, dates = null }) {
  const layout = { ...frame(360, width, { l: 52, r: 20, t: 26, b: 42 }), annotations: [], barmode: "relative" };
  const marks = dates ? dated([x], Math.max(3, Math.floor(width / 140)), dates) : {};
  layout.xaxis = axis({ title: { text: plain(xTitle), standoff: 6, font: { size: 11 } }, ...marks });
  if (x.length === 1) Object.assign(layout.xaxis, { range: [x[0] - 1, x[0] + 1], nticks: 3 });
  layout.yaxis = axis({ zeroline: true, nticks: 7, tickformat: "~g", hoverformat: ".3~g" });
  layout.annotations.push({
    text: plain(title),
    showarrow: false,
    xref: "paper",
    yref: "paper",
    x: 0,
    y: 1,
    yshift: 22,
    xanchor: "left",
    yanchor: "top",
    font: { size: 12, color: colour("--ink") }
  });
  const data = [];
  shares.forEach(({ label, values }, index) => {
    const shade = colour(areaColour(index));
    if (x.length === 1) { // areas need two
      data.push({
        type: "bar", x, y: values, name: plain(label), marker: { color: shade }, width: 0.5, showlegend: true
      });
      return;
    }
    const on = {
      type: "scatter", mode: "lines", x, line: { width: 0, color: shade }, fillcolor: shade,
      legendgroup: String(index), hoverinfo: "skip"
    };
    data.push({
      ...on, y: values.map((value) => Math.max(value ?? 0, 0)), stackgroup: "up", name: plain(label), showlegend: true
    });
    data.push({
      ...on,
      y: values.map((value) => Math.min(value ?? 0, 0)),
      stackgroup: "down",
      name: plain(label),
      showlegend: false
    });
    data.push({
      type: "scatter", mode: "lines", x, y: values, name: plain(label), line: { width: 0, color: shade },
      showlegend: false
    });
  });
  data.push({
    type: "scatter",
    ...joined(x, colour("--ink")),
    x,
    y: sum,
    name: plain(sumName),
    line: { color: colour("--ink"), width: 2 },
    showlegend: true
  });
  return { data, layout };
}

/** A logarithmic axis with about four ticks; where it spans little, at the round numbers of a linear one. */
function decades(series) {
  const values = series.flatMap((one) => one.values).filter((value) => value !== null);
  const [low, high] = [values.reduce((a, b) => Math.min(a, b), Infinity), values.reduce((a, b) => Math.max(a, b), 0)];
  const wide = Math.log10(high / low);
  if (wide > 2.2) return { type: "log", dtick: Math.max(1, Math.round(wide / 4)) };
  if (wide > 0.8) return { type: "log", dtick: "D2" };
  const step = tidy((high - low) / 6);
  const ticks = [];
  if (high > low) for (let k = Math.ceil(low / step); k * step <= high; k += 1) ticks.push(k * step);
  else ticks.push(low);
  const tickvals = ticks.map((tick) => Number(tick.toPrecision(12)));
  return {
    type: "log", tickmode: "array", tickvals, ticktext: tickvals.map((tick) => String(tick).replace("-", "−"))
  };
}

/** Lines over rounds on a logarithmic axis. */
export function curvesFigure(series, { width, title }) {
  const positive = series.every((one) => one.values.every((value) => value === null || value > 0));
  const layout = { ...frame(190, width, { l: 52, r: 20, t: 24, b: 36 }), annotations: [], hovermode: "closest" };
  const rounds = Math.max(...series.map((one) => one.values.length));
  layout.xaxis = axis({ title: { text: "round", standoff: 4, font: { size: 11 } } });
  if (rounds < 10) layout.xaxis.dtick = 1;
  layout.yaxis = axis({
    ...(positive ? decades(series) : { nticks: 5 }), tickformat: "~g", hoverformat: ".4~g", automargin: true
  });
  layout.annotations.push({
    text: plain(title),
    showarrow: false,
    xref: "paper",
    yref: "paper",
    x: 0,
    y: 1,
    yshift: 20,
    xanchor: "left",
    yanchor: "top",
    font: { size: 12, color: colour("--ink") }
  });
  const data = series.map(
    (one, index) => (
      {
        type: "scatter",
        ...joined(one.values, colour(areaColour(index))),
        x: one.values.map((_, k) => k + 1),
        y: one.values,
        name: plain(one.label),
        line: { color: colour(areaColour(index)), width: 1.8 }
      }
    )
  );
  return { data, layout };
}

const CONFIG = { displayModeBar: false, displaylogo: false, responsive: false, doubleClick: "reset", showTips: false };

/**
 * Draw a figure; only the newest of several waiting for the library is drawn. make() is called when colours and
 * widths count.
 */
export async function show(element, makeFigure) {
  element.wanted = makeFigure;
  if (!window.Plotly) sketch(element, makeFigure());
  const Plotly = await plotly();
  if (element.wanted !== makeFigure || !element.isConnected) return false; // replaced meanwhile
  const { data, layout } = makeFigure();
  element.querySelector(":scope > .sketch")?.remove();
  await Plotly.react(element, data, layout, CONFIG);
  return true;
}

/** Draw again, after a change of theme or width. */
export function again(element) {
  if (element.wanted && window.Plotly) show(element, element.wanted);
}

export function clear(element) {
  element.wanted = null;
  if (window.Plotly && element.classList.contains("js-plotly-plot")) window.Plotly.purge(element);
}

/** What is drawn, as a PNG with its sentence and a legend: a data address. */
export async function picture(element, sentence) {
  const Plotly = await plotly();
  const { data: drawn, layout } = element.wanted();
  const band = drawn.findIndex((trace) => trace.name === "band" && trace.meta);
  const data = drawn.map((trace, k) => (k === band ? { ...trace, name: plain(trace.meta), showlegend: true } : trace));
  const wide = 1200;
  const words = wrap(sentence, 130);
  const head = 34 + 20 * words.length;
  const tall = Math.round(layout.height * 1.25) + head + 40;
  const whole = {
    ...layout, width: wide, height: tall, showlegend: true,
    legend: { orientation: "h", x: 0, xanchor: "left", y: 0, yref: "container", yanchor: "bottom" },
    margin: { l: 70, r: 24, t: head + (layout.margin.t || 6), b: 90 },
    title: {
      text: words.map(plain).join("<br>"),
      x: 0.02,
      xanchor: "left",
      y: 1 - 26 / tall,
      yanchor: "top",
      font: { size: 15, color: colour("--ink") }
    },
  };
  return Plotly.toImage(
    { data, layout: whole, config: CONFIG }, { format: "png", width: wide, height: tall, scale: 2 }
  );
}

function wrap(text, length) {
  const lines = [""];
  for (const word of text.split(" ")) {
    if (lines.at(-1).length + word.length + 1 > length && lines.at(-1)) lines.push(word);
    else lines[lines.length - 1] = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
  }
  return lines;
}
