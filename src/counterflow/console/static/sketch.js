// A first drawing of a figure in SVG, for the second or so until the drawing library is there.
import { draw, put } from "./dom.js";
import { tidy } from "./format.js";

/** Draw the lines and bands of a figure of plots.js where plotly.js will draw them. */
export function sketch(element, { data, layout }) {
  const { width, height, margin } = layout;
  const image = draw(
    "svg", { class: "sketch", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", "font-size": 11 }
  );
  const inner = { wide: width - margin.l - margin.r, high: height - margin.t - margin.b };
  const tags = [...new Set(data.map((trace) => (trace.yaxis ?? "y").slice(1)))];
  for (const tag of tags) {
    const traces = data.filter((trace) => (trace.yaxis ?? "y").slice(1) === tag);
    panel(
      image, traces, layout[`xaxis${(traces[0].xaxis ?? "x").slice(1)}`], layout[`yaxis${tag}`], margin, inner, layout
    );
  }
  for (const note of layout.annotations) {
    const y = margin.t + inner.high * (1 - note.y) - (note.yshift ?? 0) + 10;
    const text = note.text.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&#36;", "$").replaceAll(
      "&amp;", "&"
    );
    image.append(draw("text", { x: margin.l + inner.wide * note.x, y, fill: note.font.color, "font-size": 12, text }));
  }
  put(element, image);
}

function panel(image, traces, xaxis, yaxis, margin, inner, layout) {
  const [left, right] = (xaxis.domain ?? [0, 1]).map((part) => margin.l + inner.wide * part);
  const [bottom, top] = (yaxis.domain ?? [0, 1]).map((part) => margin.t + inner.high * (1 - part));
  const xs = traces.filter((trace) => !trace.fill).flatMap((trace) => [trace.x[0], trace.x.at(-1)]);
  let [low, high] = [Infinity, -Infinity];
  for (const trace of traces) for (const value of trace.y) if (value !== null) [low, high] = [
    Math.min(low, value), Math.max(high, value)
  ];
  if (!(high >= low)) return;
  if (yaxis.rangemode === "tozero") [low, high] = [Math.min(low, 0), Math.max(high, 0)];
  const room = (high - low || 1) * 0.055;
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), low - room, high + room];
  const px = (x) => (left + ((x - x0) / (x1 - x0 || 1)) * (right - left)).toFixed(1);
  const py = (y) => (bottom - ((y - y0) / (y1 - y0)) * (bottom - top)).toFixed(1);
  const ink = layout.font.color;
  const step = tidy((y1 - y0) / 5);
  for (let y = Math.ceil(y0 / step) * step; y <= y1; y += step) {
    image.append(
      draw("line", { x1: left, x2: right, y1: py(y), y2: py(y), stroke: yaxis.gridcolor }),
      draw(
        "text",
        {
          x: left - 6,
          y: Number(py(y)) + 4,
          "text-anchor": "end",
          fill: ink,
          text: String(Number(y.toPrecision(6))).replace("-", "−")
        }
      )
    );
  }
  image.append(
    draw(
      "polyline",
      { points: `${left},${top} ${left},${bottom} ${right},${bottom}`, fill: "none", stroke: yaxis.linecolor }
    )
  );
  traces.forEach((trace) => {
    const line = pieces(trace, px, py);
    if (trace.fill === "toself") {
      for (const part of line) image.append(draw("polygon", { points: part.join(" "), fill: trace.fillcolor }));
    } else if (trace.line?.width > 0) {
      if (trace.mode === "lines+markers") for (const [x, y] of line.flat().map((at) => at.split(","))) image.append(
        draw("circle", { cx: x, cy: y, r: 3.5, fill: trace.line.color })
      );
      for (const part of line) image.append(
        draw(
          "polyline",
          {
            points: part.join(" "),
            fill: "none",
            stroke: trace.line.color,
            "stroke-width": trace.line.width,
            "stroke-dasharray": trace.line.dash === "dash" ? "8 5" : trace.line.dash === "dot" ? "2 3" : null
          }
        )
      );
    }
  });
}

/** The points of a line, in pieces where values are missing. */
function pieces(trace, px, py) {
  const list = [[]];
  trace.y.forEach((value, k) => {
    if (value === null) list.push([]);
    else list.at(-1).push(`${px(trace.x[k])},${py(value)}`);
  });
  return list.filter((part) => part.length);
}
