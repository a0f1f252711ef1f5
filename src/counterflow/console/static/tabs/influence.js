// Influence and training: who acts on whom, how well that is known, and how it was learnt.
import { get, seatPath } from "../api.js";
import { byId, make, put } from "../dom.js";
import { bytes, number, prose } from "../format.js";
import { drawGraph, edgesTable, legend, strengthChoice } from "../graph.js";
import { checksList, checksOf, verdictOfAll } from "../checks.js";
import { areaColour, curvesFigure, show } from "../plots.js";

const GROUPS = {
  loss: "Loss",
  disentanglement: "Disentanglement",
  gradient: "Gradient",
  delta_d: "Change of the unit's own states (delta d)"
};

/** Build the whole page of this tab. */
export function influence(context) {
  const { plant, seat } = context;
  const host = byId("influence");
  const graphCard = card("Influence", "influence-card");
  const checksCard = card("Checks", "checks-card");
  const trainingCard = card("Training", "training-card");
  const privacyCard = card("Privacy budget", "privacy-card");
  const sourceCard = card("Provenance", "provenance-card");
  put(
    host,
    make("div", { class: "column" }, graphCard, trainingCard),
    make("div", { class: "column" }, checksCard, privacyCard, sourceCard)
  );
  fillGraph(graphCard, context);
  fillLater(checksCard, plant.questions.checks, () => checksOf(context.current), fillChecks);
  fillLater(trainingCard, plant.questions.training, () => get(seatPath(seat, "training")), (place, told) => {
    fillTraining(place, told);
    fillPrivacy(privacyCard, told.privacy);
    fillProvenance(sourceCard, told.provenance, plant);
  }, () => {
    privacyCard.hidden = true;
    fillProvenance(sourceCard, {}, plant);
  });
}

function card(title, id) {
  return make("section", { class: "card", id }, make("h2", { text: title }));
}

async function fillLater(place, allowed, fetchIt, fill, otherwise = () => {}) {
  if (allowed && !allowed.allowed) {
    place.append(make("p", { class: "muted", text: allowed.reason }));
    otherwise();
    return;
  }
  try {
    const told = await fetchIt();
    if (place.isConnected) fill(place, told);
  } catch (problem) {
    place.append(make("p", { class: "warns", role: "alert", text: problem.message }));
    otherwise();
  }
}

function fillGraph(place, context) {
  const { plant, graph } = context;
  const note = make(
    "p",
    {
      class: "graph-note",
      "aria-live": "polite",
      text: "Point at an arrow, or move to it with Tab, to read its strengths."
    }
  );
  const picture = make("div", { class: "graph-place", id: "graph-large" });
  let strength = "total";
  const redraw = () => drawGraph(
    picture,
    {
      units: plant.units, edges: graph?.edges ?? null, causes: [], effect: plant.unit,
      words: { cause: "", effect: "own" }, strength, pick: null, whole: true, large: picture.clientWidth > 560, note
    }
  );
  if (!graph) {
    place.append(picture, make("p", { class: "muted", text: context.graphReason }));
    redraw();
    return;
  }
  place.append(
    make("p", { class: "lead", text: prose(graph.sentence) }),
    make("div", { class: "row between" }, legend(), strengthChoice("strength-large", strength, (next) => {
      strength = next;
      redraw();
    })),
    picture, note, edgesTable(graph.edges),
  );
  redraw(); // in the page its width is known
}

function fillChecks(place, { verdict, checks }) {
  place.append(make("p", {}, verdictOfAll(verdict, "verdict")), checksList(checks, "checks"));
}

function fillTraining(place, { method, status, traffic, series }) {
  const facts = [["Method", method], ["Status", prose(status)]];
  if (traffic) {
    const rounds = `${traffic.rounds} round${traffic.rounds === 1 ? "" : "s"}`;
    facts.push(["Traffic", `${rounds}, ${bytes(traffic.bytes_up)} up, ${bytes(traffic.bytes_down)} down`]);
  }
  place.append(definitions(facts, "training"));
  for (const [group, title] of Object.entries(GROUPS)) {
    const lines = series.filter((one) => one.group === group && one.values.length).map(
      (one) => ({ ...one, label: one.unit ? `${one.name}, ${one.unit}` : one.name })
    );
    if (!lines.length) continue;
    const element = make(
      "div", { class: "plot", role: "img", "aria-label": `${title} by round`, data: { curves: group } }
    );
    place.append(
      make(
        "figure",
        {},
        element,
        make(
          "figcaption",
          { class: "legend" },
          ...lines.map(
            (one, index) => make(
              "span",
              { class: "key" },
              make(
                "span",
                { class: "swatch line", style: { "--mark": `var(${areaColour(index)})` }, "aria-hidden": "true" }
              ),
              `${one.label}: ${number(one.values.at(-1))}`
            )
          )
        )
      )
    );
    show(element, () => curvesFigure(lines, { width: Math.max(240, element.parentElement.clientWidth), title }));
  }
}

function fillPrivacy(place, told) {
  if (!told) {
    place.append(make("p", { text: "The messages carry no differential privacy." }));
    return;
  }
  place.append(
    definitions(
      [
        ["ε", number(told.epsilon)],
        ["δ", String(told.delta)],
        ["Window", `${told.window} row${told.window === 1 ? "" : "s"}`]
      ],
      "privacy"
    )
  );
  for (const sentence of told.sentences ?? []) place.append(make("p", { text: prose(sentence) }));
  const list = make("ul", { class: "budgets", id: "budgets" });
  for (const unit of told.units ?? []) {
    const counted = Number.isFinite(unit.spent) && Number.isFinite(unit.budget) && unit.budget > 0;
    const part = counted ? Math.min(1, unit.spent / unit.budget) : 0;
    list.append(make(
      "li", { data: { budget: unit.name } }, make("span", { text: unit.name }),
      counted
        ? make(
          "span",
          {
            class: `bar${part > 0.9 ? " nearly" : ""}`,
            role: "img",
            "aria-label": `${number(unit.spent)} of ${number(unit.budget)} spent`
          },
          make("span", { style: { width: `${100 * part}%` } })
        )
        : make("span", { class: "muted", text: "no ledger here" }),
      make(
        "span",
        {
          class: "figure",
          text: counted ? `${number(unit.spent)} of ${number(unit.budget)}` : `ε ${number(unit.epsilon)}`
        }
      ),
    ));
  }
  place.append(list);
}

function fillProvenance(place, provenance, plant) {
  const told = Object.entries(provenance ?? {});
  const own = [["Seat", plant.seat], ["Method", plant.method], ["Status", prose(plant.status)]].filter(
    ([name]) => !told.some(([other]) => other.toLowerCase() === name.toLowerCase())
  );
  place.append(definitions([...own, ...told], "provenance"));
  for (const { text, weight } of plant.caveats ?? []) {
    place.append(make("p", { class: weight === "choice" ? "muted" : null }, make("strong", { text: `${weight}: ` }), prose(text)));
  }
}

function definitions(pairs, id) {
  return make(
    "dl",
    { id, class: "facts" },
    ...pairs.flatMap(([name, value]) => [make("dt", { text: name }), make("dd", { text: value })])
  );
}
