// Schedules of inputs: steps, pulses, ramps, and files; the same rules as the server's, here only to show what is
// meant.
import { make, draw, put } from "./dom.js";
import { number, span } from "./format.js";

const MOST = 20_000; // steps of a file

/** The values of one change over the horizon, one a step. */
export function valuesOf(change, horizon) {
  const { shape, size = 0, start = 0 } = change;
  const length = Math.max(1, change.length ?? horizon);
  return Array.from({ length: horizon }, (_, k) => {
    if (shape === "series") return change.values?.[k] ?? 0;
    if (k < start) return 0;
    if (shape === "pulse") return k < start + length ? size : 0;
    if (shape === "ramp") return size * Math.min(1, (k - start + 1) / length);
    return size;
  });
}

export function isZero(change) {
  return change.shape === "series" ? !(change.values ?? []).some((value) => value !== 0) : !change.size;
}

/** A small drawing of the schedule: every change in its own scale, zero in the middle. */
export function preview(host, changes, horizon, clock) {
  const wide = 320;
  const high = 48;
  const shown = changes.filter((change) => !isZero(change));
  const image = draw(
    "svg", { viewBox: `0 0 ${wide} ${high}`, class: "preview", role: "img", preserveAspectRatio: "none" }
  );
  const words = shown.map((change) => {
    const values = valuesOf(change, horizon);
    const top = Math.max(...values.map(Math.abs)) || 1;
    const every = Math.max(1, Math.floor(horizon / wide));
    const points = [];
    for (let k = 0; k < horizon; k += every) {
      const y = high / 2 - (values[k] / top) * (high / 2 - 4);
      points.push(
        `${((k / horizon) * wide).toFixed(1)},${y.toFixed(1)}`,
        `${((Math.min(horizon, k + every) / horizon) * wide).toFixed(1)},${y.toFixed(1)}`
      );
    }
    image.append(
      draw("polyline", { points: points.join(" "), class: "preview-line", "vector-effect": "non-scaling-stroke" })
    );
    const shape = change.shape === "series" ? "from a file" : change.shape;
    const furthest = values.reduce((a, b) => (Math.abs(b) > Math.abs(a) ? b : a), 0);
    return `${change.input} ${shape}, up to ${number(furthest, null, true)}`;
  });
  image.prepend(
    draw(
      "line",
      { x1: 0, x2: wide, y1: high / 2, y2: high / 2, class: "preview-zero", "vector-effect": "non-scaling-stroke" }
    )
  );
  image.setAttribute("aria-label", `Schedule over ${span(horizon, clock)}: ${words.join("; ") || "no change"}`);
  put(
    host,
    image,
    make("div", { class: "preview-scale" }, make("span", { text: "0" }), make("span", { text: span(horizon, clock) }))
  );
}

/** {rows, comma}: rows of a CSV text as arrays of cells; quotes as usual; comma, semicolon or tab. */
function rowsOf(text) {
  const first = text.slice(0, text.search(/\r?\n|$/)).replace(/"[^"]*"/g, "");
  const comma = [",", ";", "\t"].map((mark) => [first.split(mark).length, mark]).sort((a, b) => b[0] - a[0])[0][1];
  const rows = [];
  let row = [];
  let cell = "";
  let quoted = false;
  for (let at = 0; at < text.length; at += 1) {
    const sign = text[at];
    if (quoted) {
      if (sign !== '"') cell += sign;
      else if (text[at + 1] === '"') {
        cell += '"';
        at += 1;
      } else quoted = false;
    } else if (sign === '"' && cell === "") quoted = true;
    else if (sign === comma) {
      row.push(cell);
      cell = "";
    } else if (sign === "\n") {
      row.push(cell);
      rows.push(row);
      row = [];
      cell = "";
    } else if (sign !== "\r") cell += sign;
  }
  if (cell !== "" || row.length) rows.push([...row, cell]);
  return { rows: rows.filter((cells) => cells.some((one) => one.trim() !== "")), comma };
}

/** A number of a file; between semicolons also with a decimal comma. NaN if it is none. */
function numberOf(text, comma) {
  const point = comma === ";" && /^[+-]?\d*,\d+(e[+-]?\d+)?$/i.test(text) ? text.replace(",", ".") : text;
  return point === "" ? NaN : Number(point);
}

/**
 * Changes from a CSV text: the header names inputs ("fuel valve" or "boiler.fuel valve"), then one row a step.
 * Throws an Error that names the row and the column.
 */
export function changesFromCsv(text, units) {
  const { rows: [header, ...rows], comma } = rowsOf(text.replace(/^\uFEFF/, ""));
  if (!header) throw new Error("The file is empty: its first row names the inputs.");
  if (!rows.length) throw new Error("The file has a header but no rows: one row a step is needed.");
  if (rows.length > MOST) throw new Error(`The file has ${rows.length} rows; at most ${MOST} are read.`);
  rows.forEach((cells, row) => {
    if (cells.slice(header.length).some((cell) => cell.trim() !== "")) throw new Error(
      `Row ${row + 2} has ${cells.length} cells, the header ${header.length}. Decimal commas need semicolons between `
        + "columns; a single column needs decimal points."
    );
  });
  const inputs = units.flatMap((unit) => unit.inputs.map((input) => ({ unit: unit.name, input })));
  const known = inputs.map(({ unit, input }) => `${unit}.${input.name}`);
  const taken = new Set();
  return header.map((cell, column) => {
    const title = cell.trim();
    const found = inputs.filter(({ unit, input }) => title === input.name || title === `${unit}.${input.name}`);
    const place = `Column ${column + 1} of the header`;
    if (!found.length) throw new Error(
      `${place}: "${title}" is not an input here. Known: ${known.join(", ")}.`
    );
    if (found.length > 1) throw new Error(
      `${place}: "${title}" is an input of ${found.map(({ unit }) => unit).join(" and of ")}; write unit.input.`
    );
    const [{ unit, input }] = found;
    if (!input.allowed) throw new Error(`${place}: "${title}" may not be asked about. ${input.reason}`);
    const key = `${unit}.${input.name}`;
    if (taken.has(key)) throw new Error(`${place}: "${title}" is there twice.`);
    taken.add(key);
    const values = rows.map((cells, row) => {
      const said = (cells[column] ?? "").trim();
      const value = numberOf(said, comma);
      if (!Number.isFinite(value)) throw new Error(
        `Row ${row + 2}, column ${column + 1} (${title}): "${said}" is not a number.`
      );
      return value;
    });
    return { unit, input: input.name, shape: "series", size: 0, start: 0, length: null, values };
  });
}
