// One input of a unit as a slider with a number field, in engineering units, with limits and seen range on its track.
import { make, numberField, freshId, put } from "./dom.js";
import { exact, number, quantity, tidy } from "./format.js";

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** How far the slider goes. Changes: around zero; "set": values themselves. */
export function rangeOf(input, kind) {
  const [lowest, highest] = input.limits ?? [null, null];
  const seen = input.seen ?? null;
  const width = seen && seen[1] > seen[0] ? seen[1] - seen[0] : null;
  const both = known(lowest) && known(highest) ? highest - lowest : null;
  const reach = width ?? both ?? 1;
  let low;
  let high;
  if (kind === "set") {
    const middle = known(input.last) ? input.last : seen ? (seen[0] + seen[1]) / 2 : 0;
    low = known(lowest) ? lowest : Math.min(middle, seen ? seen[0] : middle) - reach / 2;
    high = known(highest) ? highest : Math.max(middle, seen ? seen[1] : middle) + reach / 2;
  } else {
    const around = kind === "change" && known(input.last); // in the past the input was elsewhere
    low = around && known(lowest) ? Math.min(0, lowest - input.last) : -reach;
    high = around && known(highest) ? Math.max(0, highest - input.last) : reach;
  }
  if (!(high > low)) high = low + 1;
  const step = tidy((high - low) / 250);
  // zero lies on the slider's grid, so the ends are moved inwards to it
  const tolerance = 1e-9;
  return {
    low: round(Math.ceil(low / step - tolerance) * step), high: round(Math.floor(high / step + tolerance) * step), step
  };
}

function round(value) {
  return Number(value.toPrecision(12));
}

/** What a value means and whether anybody has seen it: {text, warning}. past: what the input was is not told. */
export function reading(input, kind, value, past = false) {
  const unit = input.measured_in;
  const [lowest, highest] = input.limits ?? [null, null];
  const seen = input.seen ?? null;
  if (kind === "set" && value === null) {
    if (past) return { text: "as it was", warning: "" };
    return { text: known(input.last) ? `held at ${quantity(number(input.last), unit)}` : "as it is", warning: "" };
  }
  const placed = kind === "set" ? value : kind === "change" && known(input.last) ? input.last + value : null;
  let text = "";
  if (kind === "set" && past) text = `set to ${quantity(exact(value), unit)}`;
  else if (kind === "set") text = known(input.last)
    ? `${exact(value)} in place of ${quantity(number(input.last), unit)}`
    : quantity(exact(value), unit);
  else if (placed !== null) text = value === 0
    ? `stays at ${quantity(number(input.last), unit)}`
    : `${number(input.last)} → ${quantity(number(placed), unit)}`;
  else if (kind === "add") text = value === 0 ? "as it was" : `${quantity(exact(value, true), unit)} on what it was`;
  else text = value === 0 ? "no change" : `${quantity(exact(value, true), unit)} on its present value`;
  let warning = "";
  if (
    placed !== null && known(lowest) && placed < lowest - 1e-9
  ) warning = `below its limit of ${quantity(exact(lowest), unit)}`;
  else if (
    placed !== null && known(highest) && placed > highest + 1e-9
  ) warning = `above its limit of ${quantity(exact(highest), unit)}`;
  else if (seen && value !== 0) {
    const outside = placed !== null
      ? placed < seen[0] - 1e-9 || placed > seen[1] + 1e-9
      : Math.abs(value) > seen[1] - seen[0] + 1e-9;
    if (outside) warning = placed !== null
      ? `beyond the seen range (${number(seen[0])} to ${quantity(number(seen[1]), unit)})`
      : `more than its seen width (${quantity(number(seen[1] - seen[0]), unit)})`;
  }
  return { text, warning };
}

/**
 * The control.
 * @param {object} options unit (name), input (of the plant), kind ("change" | "add" | "set"), value (null: untouched),
 *   kinds ([kind, text] pairs to choose from, or null), past (not from now on), onInput(value, time), onKind(kind)
 */
export function inputControl({ unit, input, kind, value, kinds = null, past = false, onInput, onKind = null }) {
  const name = `${unit}.${input.name}`;
  const id = freshId("input");
  const { low, high, step } = rangeOf(input, kind);
  const rest = kind === "set" ? (known(input.last) ? input.last : (low + high) / 2) : 0;
  const start = value ?? rest;
  const off = !input.allowed;
  const range = make("input", {
    type: "range", id, min: Math.min(low, start), max: Math.max(high, start), step, value: start, disabled: off,
    data: { input: name },
    "aria-label": [
      `${input.name} of ${unit}, ${kind === "set" ? "value" : "change"}`, input.measured_in
    ].filter(Boolean).join(" in "),
    on: { input: (event) => moved(range.valueAsNumber, event.timeStamp, false) },
  });
  const shown = value === null ? "" : exactText(value);
  const exactField = numberField(`${id}-number`, shown, (read, when) => moved(read, when, true), {
    step, disabled: off, data: { number: name }, placeholder: value === null ? "–" : null,
    "aria-label": `${input.name} of ${unit}, exactly`,
  });
  const says = make("span", { class: "says" });
  const warns = make("span", { class: "warns" });
  const reset = make("button", {
    type: "button", class: "small quiet", data: { reset: name }, disabled: off, title: "Back to no change",
    "aria-label": `Reset ${input.name} of ${unit}`, text: "↺",
    on: { click: (event) => set(null, event.timeStamp) },
  });
  const choose = kinds && make(
    "select",
    {
      class: "kind",
      disabled: off,
      data: { kind: name },
      "aria-label": `How ${input.name} of ${unit} is changed`,
      on: { change: () => onKind(choose.value) }
    }
  );
  for (const [key, text] of kinds ?? []) choose.append(make("option", { value: key, text, selected: key === kind }));

  function exactText(shown) {
    return String(Number(Number(shown).toPrecision(10)));
  }
  function say(current) {
    const { text, warning } = reading(input, kind, kind === "set" ? current : current ?? 0, past);
    says.textContent = text;
    warns.textContent = warning;
    range.setAttribute("aria-valuetext", warning ? `${text}, ${warning}` : text);
  }
  function moved(next, when, typed) {
    if (typed) {
      if (next < Number(range.min)) range.min = next; // a typed value may go further than the slider did
      if (next > Number(range.max)) range.max = next;
      range.value = next;
      marks();
    } else exactField.value = exactText(next);
    exactField.setAttribute("aria-invalid", "false");
    say(next);
    onInput(next, when);
  }
  function set(next, when) {
    range.value = next ?? rest;
    exactField.value = next === null && kind === "set" ? "" : exactText(next ?? 0);
    exactField.setAttribute("aria-invalid", "false");
    say(next);
    onInput(kind === "set" ? next : next ?? 0, when);
  }

  const track = make("div", { class: "track", "aria-hidden": "true" });
  function marks() {
    const from = Number(range.min);
    const width = Number(range.max) - from || 1;
    const place = (at) => `${Math.max(0, Math.min(100, (100 * (at - from)) / width))}%`;
    const shift = kind === "set" ? 0 : kind === "change" && known(input.last) ? input.last : null;
    put(track);
    if (shift !== null && input.seen) {
      const [left, right] = [place(input.seen[0] - shift), place(input.seen[1] - shift)];
      track.append(
        make(
          "span", { class: "seen", style: { left, width: `${Math.max(0.5, parseFloat(right) - parseFloat(left))}%` } }
        )
      );
    }
    for (const limit of shift !== null ? input.limits ?? [] : []) if (known(limit)) track.append(
      make("span", { class: "limit", style: { left: place(limit - shift) } })
    );
    if (kind !== "set" || !past) track.append(
      make("span", { class: "rest", style: { left: place(kind === "set" ? rest : 0) } })
    );
  }
  marks();
  say(value);
  const range_words = [
    input.seen ? `seen ${number(input.seen[0])} to ${number(input.seen[1])}` : "",
    input.limits
      ? `limits ${input.limits.map((limit) => (known(limit) ? exact(limit) : "none")).join(" to ")}`
      : "",
  ].filter(Boolean).join(" · ");
  return make(
    "div", { class: "input-control", data: { control: name } },
    make(
      "div",
      { class: "input-head" },
      make("label", { for: id, class: "input-name", text: input.name }),
      choose,
      exactField,
      make("span", { class: "unit", text: input.measured_in }),
      reset
    ),
    make("div", { class: "slide" }, range, track),
    make(
      "div",
      { class: "input-foot" },
      off ? make("span", { class: "warns", text: input.reason || "May not be asked about." }) : says,
      off ? null : warns,
      make("span", { class: "ranges", text: range_words })
    ),
  );
}
