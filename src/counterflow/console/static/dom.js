// Building the page's elements. Names of units and channels come from data and are never read as HTML: text only.

/**
 * Make an element.
 * @param {string} tag
 * @param {object} [given] attributes; besides: text, on ({event: handler}), data ({name: value}), style ({property:
 *   value}).
 *   An attribute that is null, undefined or false is left out; true is an empty attribute.
 * @param {...(Node|string|null)} children
 */
export function make(tag, given = {}, ...children) {
  return fill(document.createElement(tag), given, children);
}

/** The same for SVG. */
export function draw(tag, given = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), given, children);
}

function fill(element, given, children) {
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name === "on") for (
      const [event, handler] of Object.entries(value)
    ) element.addEventListener(event, handler);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "style") for (
      const [property, text] of Object.entries(value)
    ) element.style.setProperty(property, text);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child !== null && child !== undefined) element.append(child);
  return element;
}

/** The element with this id, which the page has from the start. */
export function byId(id) {
  return document.getElementById(id);
}

/** Replace what an element holds. */
export function put(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

let count = 0;

/** An id for a label's `for`. */
export function freshId(stem) {
  count += 1;
  return `${stem}-${count}`;
}

/** A labelled control: the label above or before it, a hint behind it. */
export function field(label, control, hint = null) {
  if (!control.id) control.id = freshId("field");
  return make("div", { class: "field" }, make("label", { for: control.id, text: label }), control, hint);
}

/** A select of [value, text] pairs. */
export function select(id, options, value, onChange, given = {}) {
  const element = make("select", { id, ...given, on: { change: () => onChange(element.value) } });
  for (const [key, text] of options) element.append(make("option", { value: key, text, selected: key === value }));
  return element;
}

/** A row of exclusive choices, as radio buttons that look like one control. options: [value, text] pairs. */
export function choices(name, label, options, value, onChange) {
  const group = make(
    "fieldset", { class: "choices", data: { name } }, make("legend", { class: "unseen", text: label })
  );
  for (const [key, text] of options) {
    const id = `${name}-${key}`;
    const radio = make(
      "input", { type: "radio", name, id, value: key, checked: key === value, on: { change: () => onChange(key) } }
    );
    group.append(radio, make("label", { for: id, text }));
  }
  return group;
}

/** A field for text that means a number: read(text) gives it, or null. onInput gets what was read, unread the rest. */
export function readField(id, value, read, onInput, { unread = () => {}, ...given } = {}) {
  const element = make("input", {
    type: "text", id, value, autocomplete: "off", spellcheck: "false", ...given,
    on: {
      input: (event) => {
        const found = read(element.value);
        element.setAttribute("aria-invalid", String(found === null));
        if (found !== null) onInput(found, event.timeStamp);
        else unread(element.value);
      },
    },
  });
  return element;
}

/** A number field that reports finite numbers only; others are marked invalid and not reported. */
export function numberField(id, value, onInput, given = {}) {
  const element = make("input", {
    type: "number", id, value, inputmode: "decimal", autocomplete: "off", ...given,
    on: {
      input: (event) => {
        const read = element.valueAsNumber;
        const low = given.min === undefined || given.min === null || read >= Number(given.min);
        const high = given.max === undefined || given.max === null || read <= Number(given.max);
        const fine = Number.isFinite(read) && low && high;
        element.setAttribute("aria-invalid", String(!fine));
        if (fine) onInput(read, event.timeStamp);
      },
    },
  });
  return element;
}
