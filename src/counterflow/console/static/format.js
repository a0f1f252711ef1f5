// Numbers and times as people read them, by the rules of the command line: three digits that count, or two of the
// interval's half width.

/** Digits after the point. */
export function decimals(mean, halfWidth = null) {
  let digits = 2;
  if (halfWidth !== null && Number.isFinite(halfWidth) && halfWidth > 0) digits = 1 - Math.floor(Math.log10(halfWidth));
  else if (Number.isFinite(mean) && mean !== 0) digits = 2 - Math.floor(Math.log10(Math.abs(mean)));
  return Math.max(0, Math.min(digits, 9));
}

/** A number with so many digits after the point, or with three that count; "–" where there is none. */
export function number(value, digits = null, sign = false) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  let text;
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-4 || size >= 1e6)) text = String(Number(value.toPrecision(3)).toExponential());
  else text = value.toFixed(digits === null ? decimals(value) : digits);
  if (/^-[0.]*$/.test(text)) text = text.slice(1); // no -0.00
  if (sign && value > 0 && !/^[0.]*$/.test(text)) text = `+${text}`;
  return text.replace("-", "−");
}

/** A sentence as the page writes it: a true minus before figures, arrows as arrows; names keep their hyphens. */
export function prose(text) {
  return String(text).replace(/(^|[\s([=:])-(?=\.?\d)/g, "$1−").replace(/(\de)-(?=\d)/g, "$1−").replaceAll(
    " -> ", " → "
  );
}

/** A number as the user gave it. */
export function exact(value, sign = false) {
  const text = String(Number(Number(value).toPrecision(10))).replace("-", "−");
  return sign && value > 0 ? `+${text}` : text;
}

export function quantity(text, unit) {
  return unit ? `${text} ${unit}` : text;
}

/** {value, interval}: a value with its unit of measure, and "low to high" ("" if there is none). */
export function measured(mean, lower, upper, unit, sign = false) {
  if (!Number.isFinite(lower) || !Number.isFinite(upper) || lower === null || upper === null) {
    return { value: quantity(number(mean, null, sign), unit), interval: "" };
  }
  const digits = decimals(mean, (upper - lower) / 2);
  const interval = `${number(lower, digits, sign)} to ${number(upper, digits, sign)}`;
  return { value: quantity(number(mean, digits, sign), unit), interval };
}

export function percent(level) {
  return `${Number((100 * level).toPrecision(6))} %`;
}

/** When a row was, as clocks of its own zone show it: "2024-11-01 14:00 Europe/Berlin"; "" if dates are not known. */
export function dateOf(row, calendar) {
  const shown = clockOf(row, calendar);
  return shown && calendar.zone ? `${shown} ${calendar.zone}` : shown;
}

/** The same without the zone. */
export function clockOf(row, calendar) {
  if (!calendar) return "";
  const later = calendar.jumps.reduce((sum, [first, extra]) => sum + (row >= first ? extra : 0), 0);
  const moment = new Date(calendar.begins + row * calendar.step + later);
  const parts = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit" };
  const whole = calendar.step % 60000 === 0 ? parts : { ...parts, second: "2-digit" };
  return moment.toLocaleString("sv-SE", { ...whole, timeZone: calendar.zone || "UTC", hourCycle: "h23" });
}

const SECONDS = { ms: 1e-3, s: 1, sec: 1, min: 60, m: 60, h: 3600, hr: 3600, d: 86400, day: 86400, days: 86400, w: 604800 };
const NUMBER = /^[+-]?(\d+([.,]\d*)?|[.,]\d+)$/;

/** Steps of a number in the clock's unit, or of a duration such as "2h" or "1d 6h"; null if it is neither. */
export function stepsOf(text, clock, dt) {
  const given = text.trim().toLowerCase();
  if (NUMBER.test(given)) return Math.round(Number(given.replace(",", ".")) / clock.step);
  const parts = [...given.matchAll(/\s*(\d+(?:[.,]\d+)?)\s*([a-z]+)\s*/gy)];
  const whole = parts.reduce((sum, [part]) => sum + part.length, 0);
  if (!parts.length || whole !== given.length || parts.some(([, , unit]) => !(unit in SECONDS))) return null;
  const seconds = parts.reduce((sum, [, count, unit]) => sum + Number(count.replace(",", ".")) * SECONDS[unit], 0);
  return Math.round(seconds / dt);
}

/** The first row at or after a date such as "2024-11-01 14:00", as clocks of the zone show it; null if there is none. */
export function rowOf(text, calendar, rows) {
  const found = text.trim().match(/^(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d)(?::(\d\d))?)?$/);
  if (!found || !calendar || !rows) return null;
  const [, year, month, day, hour = "00", minute = "00", second = "00"] = found;
  const seconds = calendar.step % 60000 === 0 ? "" : `:${second}`;
  const wanted = `${year}-${month}-${day} ${hour}:${minute}${seconds}`;
  if (wanted < clockOf(0, calendar) || wanted > clockOf(rows - 1, calendar)) return null;
  let [low, high] = [0, rows - 1];
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    if (clockOf(middle, calendar) < wanted) low = middle + 1;
    else high = middle;
  }
  const hours = Math.round(3600000 / calendar.step); // an hour that clocks show twice: the first time
  return low >= hours && clockOf(low - hours, calendar) === clockOf(low, calendar) ? low - hours : low;
}

/** So many steps in the clock's unit: "12 min", or "12 steps". */
export function span(steps, clock) {
  const amount = Number((steps * clock.step).toPrecision(6));
  const unit = clock.unit === "steps" && amount === 1 ? "step" : clock.unit;
  return `${amount} ${unit}`;
}

/** The title of an axis of time: "at time (min)", "row". */
export function timeTitle(clock, what) {
  return clock.unit === "steps" ? what.replace("time", "steps").replace("at steps", "row") : `${what} (${clock.unit})`;
}

/** A row as a point in time: "minute 12", "row 12". */
export function point(row, clock) {
  return `${clock.point} ${Number((row * clock.step).toPrecision(9))}`;
}

/** Bytes, in kB where that reads better. */
export function bytes(count) {
  if (!Number.isFinite(count)) return "–";
  if (count < 1000) return `${count} B`;
  return count < 1e6 ? `${number(count / 1e3)} kB` : `${number(count / 1e6)} MB`;
}

/** The next 1, 2 or 5 times a power of ten that is at least this. */
export function tidy(value) {
  if (!(value > 0) || !Number.isFinite(value)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const lead = value / power;
  const step = lead <= 1.0000001 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10;
  return Number((step * power).toPrecision(3));
}
