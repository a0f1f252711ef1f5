// What a link asks, read for this plant. What cannot be used is left out of the question and said: a question that is
// silently another one would be believed.

const MOST = 4; // parts named in one notice
const LONG = 60; // characters of something that was given

/** What was given, as text of a bearable length. */
function said(value) {
  if (value === undefined || value === null) return "(none)";
  const text = JSON.stringify(value) ?? String(value);
  return text.length > LONG ? `${text.slice(0, LONG)}…` : text;
}

/** What of a link is left out, by reason. */
export class LeftOut {
  #reasons = new Map();

  #add(reason, what) {
    if (!this.#reasons.has(reason)) this.#reasons.set(reason, new Set());
    this.#reasons.get(reason).add(what);
  }
  unknown(what) {
    this.#add("which this plant does not have", what);
  }
  unseen(what) {
    this.#add("which this seat does not see", what);
  }
  impossible(what) {
    this.#add("which is not possible", what);
  }
  /** One sentence a reason. */
  sentences() {
    return [...this.#reasons].map(([reason, parts]) => {
      const list = [...parts];
      const more = list.length > MOST ? ` and ${list.length - MOST + 1} more` : "";
      const named = (more ? list.slice(0, MOST - 1) : list).join(", ");
      return `The link asks about ${named}${more}, ${reason}; that part is left out.`;
    });
  }
}

const absent = (value) => value === undefined || value === null;

/** A list, which may be missing. */
export function listOf(value, what, left) {
  if (absent(value)) return [];
  if (Array.isArray(value)) return value;
  left.impossible(`${what} ${said(value)}`);
  return [];
}

/** The unit asked about: the seat's own, or any whose outputs it sees. */
export function unitOf(name, plant, otherwise, left) {
  if (absent(name)) return plant.unit ?? otherwise;
  const unit = plant.units.find((one) => one.name === name);
  if (!unit) left.unknown(`unit ${said(name)}`);
  else if (plant.unit === null ? !unit.outputs.length : unit.name !== plant.unit) left.unseen(
    `what happens at ${unit.name}`
  );
  else return unit.name;
  return plant.unit ?? otherwise;
}

/** {unit, input}: names of an input that the plant has, or null. */
export function inputOf(one, plant, left) {
  if (typeof one !== "object" || one === null) {
    left.impossible(`the change ${said(one)}`);
    return null;
  }
  const unit = plant.units.find((other) => other.name === one.unit);
  if (!unit) left.unknown(`unit ${said(one.unit)}`);
  else if (!unit.inputs.some((input) => input.name === one.input)) left.unknown(
    `input ${said(one.input)} of ${unit.name}`
  );
  else return { unit: unit.name, input: one.input };
  return null;
}

/** A finite number; what else is right if there is none; undefined (and said) if it is something else, or needed. */
export function numberOf(value, otherwise, what, left) {
  if (absent(value) && otherwise !== undefined) return otherwise;
  if (typeof value === "number" && Number.isFinite(value)) return value;
  left.impossible(`${what} ${said(value)}`);
  return undefined;
}

/** One of some words. */
export function wordOf(value, words, otherwise, what, left) {
  if (absent(value)) return otherwise;
  if (words.includes(value)) return value;
  left.impossible(`${what} ${said(value)}`);
  return undefined;
}

/** A whole number between two bounds, or what else is right. */
export function wholeOf(value, low, high, otherwise, what, left) {
  if (Number.isInteger(value) && value >= low && value <= high) return value;
  if (!absent(value)) left.impossible(`${what} ${said(value)}`);
  return otherwise;
}

/** Finite numbers, one a row; null if there are none; undefined if one of them is none. */
export function valuesOf(values, what, left) {
  if (absent(values)) return null;
  if (Array.isArray(values) && values.length && values.every((one) => Number.isFinite(one))) return values;
  left.impossible(`${what} ${said(values)}`);
  return undefined;
}

export function levelOf(value, left) {
  if (typeof value === "number" && value > 0 && value < 1) return value;
  if (!absent(value)) left.impossible(`level ${said(value)}`);
  return 0.95;
}

/** How controllers are meant (undefined: as the data support), and which of them follow another law. */
export function worldOf(told, plant, left) {
  const { controllers } = told;
  const known = controllers === "held" || controllers === "reacting";
  if (!known && !absent(controllers)) left.impossible(`controllers ${said(controllers)}`);
  const laws = [];
  for (const one of listOf(told.laws, "the laws", left)) {
    const place = inputOf(one, plant, left);
    if (place === null) continue;
    if (typeof one.law === "string" && one.law && one.law.length <= 200) laws.push({ ...place, law: one.law });
    else left.impossible(`the law of ${place.unit} ${place.input}: ${said(one.law)}`);
  }
  return { controllers: known ? controllers : undefined, laws };
}

/** Names of channels to draw that the unit has; null if none. */
export function drawOf(value, name, plant, left) {
  const has = new Set(plant.units.find((one) => one.name === name)?.outputs.map((output) => output.name));
  const list = listOf(value, "the channels", left).filter((channel) => {
    if (!has.has(channel)) left.unknown(`channel ${said(channel)} of ${name}`);
    return has.has(channel);
  });
  return list.length ? list : null;
}

/** {start, stop}: rows that the log has, or those to begin with. */
export function windowOf({ start, stop }, plant, first, left) {
  if (absent(start) && absent(stop)) return first;
  const rows = plant.rows ?? Infinity;
  if (
    Number.isInteger(start) && Number.isInteger(stop) && start >= 0 && start < stop && stop <= rows
  ) return { start, stop };
  left.impossible(`rows ${said(start)} up to ${said(stop)}${rows < Infinity ? ` of ${rows}` : ""}`);
  return first;
}
