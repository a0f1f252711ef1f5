// The units whose inputs a question changes: one group of sliders a unit, added and removed.
import { make, select } from "./dom.js";

/** Units that have an input one may ask about. */
export function possibleCauses(plant) {
  return plant.units.filter((unit) => unit.inputs.some((input) => input.allowed));
}

/** Why a unit cannot be picked; "" if it can. */
export function refusal(unit) {
  if (!unit.inputs.length) return `${unit.name} has no inputs.`;
  if (unit.inputs.some((input) => input.allowed)) return "";
  return unit.inputs[0].reason || `${unit.name} may not be asked about.`;
}

/**
 * Groups of controls for the picked units and a select to add one.
 * @param {object} plant
 * @param {string[]} picked
 * @param {object} given control(unit, input) -> element; toggle(name); noun ("cause")
 */
export function causeGroups(plant, picked, { control, toggle, noun = "cause" }) {
  const host = make("div", { class: "causes" });
  for (const name of picked) {
    const unit = plant.units.find((one) => one.name === name);
    if (!unit) continue;
    host.append(
      make(
        "fieldset", { class: "cause", data: { cause: name } },
        make(
          "legend",
          {},
          make("span", { class: "cause-name", text: name }),
          unit.own ? make("span", { class: "tag", text: "own" }) : null
        ),
        make(
          "button",
          {
            type: "button", class: "small quiet remove", "aria-label": `Remove ${name}`, title: `Remove ${name}`,
            data: { remove: name }, text: "×", on: { click: () => toggle(name) }
          }
        ),
        ...unit.inputs.map((input) => control(unit, input)),
      ),
    );
  }
  const others = possibleCauses(plant).filter((unit) => !picked.includes(unit.name));
  if (others.length) {
    const first = picked.length ? `Add another ${noun} …` : `Pick a ${noun} …`;
    host.append(
      select(
        "add-cause",
        [["", first], ...others.map((unit) => [unit.name, unit.name])],
        "",
        (name) => name && toggle(name),
        { "aria-label": first.replace(" …", "") }
      )
    );
  }
  return host;
}

/** A tab's toggle: a unit becomes a cause, or is none any more and takes what was asked of it along. */
export function togglesCause(key) {
  return (question, name) => {
    if (question.causes.includes(name)) {
      question.causes = question.causes.filter((one) => one !== name);
      question[key] = question[key].filter((one) => one.unit !== name);
    } else question.causes = [...question.causes, name];
  };
}
