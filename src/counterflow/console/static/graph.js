// The plant as a graph of units, in SVG: arrows by strength (width) and certainty (line).
import { make, draw, put, choices } from "./dom.js";
import { number } from "./format.js";

const KINDS = {
  direct: "direct", "through others": "through", "not determined": "unknown", "none found": "none", "ruled out": "none"
};

const CROWD = 30; // arrows; beyond, only those of picked causes stand out
const PICKED = 4; // causes whose arrows can be told apart
const MANY = 6; // units; beyond, the small graph is about those that are asked about

/** What is known of one influence, as text. */
export function edgeText(edge) {
  const parts = [`${edge.cause} → ${edge.effect}: ${edge.kind}`];
  if (edge.direct_strength !== null) parts.push(`direct strength ${number(edge.direct_strength)}`);
  if (edge.total_strength !== null) parts.push(`total ${number(edge.total_strength)}`);
  if (edge.q_value !== null) parts.push(`q ${chance(edge.q_value)}`);
  return parts.join(", ");
}

export function chance(value) {
  if (value === null || value === undefined) return "–";
  return value < 1e-4 ? "< 0.0001" : number(value, value < 0.001 ? 4 : 3);
}

/**
 * Draw the graph.
 * @param {Element} host
 * @param {object} given units, edges (null: not available), reason (why there are none), causes (names), effect
 *   (name or null),
 *   words ({cause, effect}: what those are called), strength ("direct" | "total"), pick(name) or null,
 *   refusal(unit) -> "" or why not, large, whole (all arrows count alike, however many), note (element for texts)
 */
export function drawGraph(host, given) {
  const { units, edges, causes, effect, words, strength, pick, refusal, large, whole = false, note } = given;
  const wide = large ? 760 : 380;
  const high = (large ? 440 : 214) + Math.max(0, units.length - 8) * (large ? 26 : 20);
  const places = layout(units.map((unit) => unit.name), wide, high, large);
  // the arrows: those that the chosen strength knows
  const shown = (edges ?? []).filter(
    (edge) => KINDS[edge.kind] !== "none" && (strength === "total" || edge.kind !== "through others")
      && places.has(edge.cause) && places.has(edge.effect)
  );
  const image = draw(
    "svg",
    {
      viewBox: `0 0 ${wide} ${high}`,
      class: `graph${large ? " large" : ""}${shown.length > CROWD ? " crowded" : ""}`,
      role: "group",
      "aria-label": "Graph of the units"
    }
  );
  const measure = (edge) => (strength === "direct" ? edge.direct_strength : edge.total_strength) ?? 0;
  const most = Math.max(...shown.map(measure), 0) || 1;
  const tell = (text) => {
    if (note) note.textContent = text;
  };
  // the strong ones are drawn last, those of a picked cause above all
  // with many picked, as levers are at first, it is about the affected unit alone
  const about = (name) => name === effect || (causes.length <= PICKED && causes.includes(name));
  const faint = (edge) => !whole && units.length > MANY && !about(edge.cause) && !about(edge.effect);
  const rank = (edge) => (faint(edge) ? -10 : 0) + (causes.includes(edge.cause) ? 10 : 0) + measure(edge) / most;
  for (const edge of [...shown].sort((a, b) => rank(a) - rank(b))) {
    const width = edge.kind === "not determined" ? 1.4 : 1.2 + (large ? 6 : 4.2) * Math.sqrt(measure(edge) / most);
    const lively = causes.includes(edge.cause) && edge.kind !== "not determined";
    const look = faint(edge) ? " faint" : lively ? " lively" : "";
    image.append(arrow(edge, places.get(edge.cause), places.get(edge.effect), width, look, large, tell));
  }
  for (const unit of units) image.append(
    node(unit, places.get(unit.name), { causes, effect, words, pick, why: refusal ? refusal(unit) : "", tell, large })
  );
  const focused = host.contains(document.activeElement) ? document.activeElement.dataset.node : null;
  put(host, image);
  if (focused) for (const one of image.querySelectorAll("[data-node]")) if (one.dataset.node === focused) one.focus();
}

/** Boxes on an ellipse, the first one on the left: {x, y, w, h} by name. */
function layout(names, wide, high, large) {
  const size = large ? 15 : names.length > 8 ? 10.5 : 12.5;
  const longest = names.length > 5 ? 13 : 16;
  const box = { h: size * (large ? 2.6 : 2.3), size, longest };
  const rx = wide / 2;
  const ry = high / 2;
  const places = new Map();
  const turn = names.length === 3 ? Math.PI / 6 : 0; // three: two above, one below
  const angles = names.map((_, index) => Math.PI + turn + (2 * Math.PI * index) / names.length);
  const sines = angles.map(Math.sin);
  const [top, bottom] = [Math.min(...sines), Math.max(...sines)];
  const room = box.h / 2 + (large ? 24 : 18);
  names.forEach((name, index) => {
    const w = Math.min(Math.max(4, name.length), longest) * size * 0.6 + size * 1.8;
    const cosine = Math.cos(angles[index]);
    // many: pushed to the sides, where boxes have room above each other
    const aside = names.length > 10 ? Math.sign(cosine) * Math.abs(cosine) ** 0.4 : cosine;
    const x = names.length === 1 ? rx : rx + (rx - w / 2 - 6) * aside;
    const y = bottom - top < 0.1 ? ry : room + ((sines[index] - top) / (bottom - top)) * (high - 2 * room);
    places.set(name, { x, y, w, above: y < ry - 1, ...box });
  });
  return places;
}

function arrow(edge, from, to, width, look, large, tell) {
  const [a, c, b] = [[from.x, from.y], bend(from, to), [to.x, to.y]];
  const at = (t) => [0, 1].map((i) => (1 - t) ** 2 * a[i] + 2 * t * (1 - t) * c[i] + t * t * b[i]);
  const outside = (p, box, gap) => Math.abs(p[0] - box.x) > box.w / 2 + gap || Math.abs(p[1] - box.y) > box.h / 2 + gap;
  let start = 0;
  while (start < 0.5 && !outside(at(start), from, 2)) start += 0.005;
  let tip = 1;
  while (tip > 0.5 && !outside(at(tip), to, 3)) tip -= 0.005;
  const head = 5 + width * 1.5;
  let neck = tip;
  while (neck > start && Math.hypot(...at(neck).map((v, i) => v - at(tip)[i])) < head * 0.9) neck -= 0.005;
  const line = [];
  for (let k = 0; k <= 24; k += 1) line.push(at(start + ((neck - start) * k) / 24));
  const [p, q] = [at(tip), at(neck)];
  const long = Math.hypot(p[0] - q[0], p[1] - q[1]) || 1;
  const side = [(-(p[1] - q[1]) / long) * head * 0.5, ((p[0] - q[0]) / long) * head * 0.5];
  const text = (points) => points.map((point) => point.map((v) => v.toFixed(1)).join(",")).join(" ");
  const words = edgeText(edge);
  const group = draw("g", {
    class: `edge ${KINDS[edge.kind]}${look}`,
    data: { edge: `${edge.cause}→${edge.effect}` }, role: "img", "aria-label": words, tabindex: large ? 0 : null,
    on: { mouseenter: () => tell(words), focus: () => tell(words), click: () => tell(words) },
  });
  group.append(
    draw("title", { text: words }),
    draw("polyline", { points: text([...line, p]), class: "grip" }),
    draw("polyline", { points: text([...line, p]), class: "casing" }), // with the grip: a ring when it has the focus
    draw("polyline", { points: text(line), class: "shaft", "stroke-width": width.toFixed(2) }),
    draw(
      "polygon",
      { points: text([p, [q[0] + side[0], q[1] + side[1]], [q[0] - side[0], q[1] - side[1]]]), class: "head" }
    ),
  );
  return group;
}

/** Both directions bow to their own right, so a pair does not lie on one line. */
function bend(from, to) {
  const [x, y] = [to.x - from.x, to.y - from.y];
  return [(from.x + to.x) / 2 - y * 0.14, (from.y + to.y) / 2 + x * 0.14];
}

function node(unit, place, { causes, effect, words, pick, why, tell, large }) {
  const cause = causes.includes(unit.name);
  const count = `${unit.inputs.length} input${unit.inputs.length === 1 ? "" : "s"}`;
  const affected = unit.name === effect;
  const roles = [unit.own ? "own unit" : "", affected ? words.effect : "", cause ? words.cause : ""].filter(Boolean);
  const act = () => {
    if (why) tell(why);
    else pick(unit.name);
  };
  const group = draw("g", {
    class: [
      "node", cause && "cause", affected && "affected", pick && "pickable", why && "refused"
    ].filter(Boolean).join(" "),
    transform: `translate(${place.x.toFixed(1)} ${place.y.toFixed(1)})`, data: { node: unit.name },
    role: pick ? "button" : "img", tabindex: pick ? 0 : null, "aria-pressed": pick ? String(cause) : null,
    "aria-disabled": why && pick ? "true" : null,
    "aria-label": [unit.name, count, ...roles].join(", ") + (why && pick ? `. ${why}` : ""),
    on: pick ? {
      click: act, keydown: (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), act())
    } : {},
  });
  const name = unit.name.length > place.longest ? `${unit.name.slice(0, place.longest - 1)}…` : unit.name;
  group.append(
    draw("title", { text: why && pick ? `${unit.name}: ${why}` : unit.name }),
    draw("rect", {
      class: "ring", x: -place.w / 2 - 4, y: -place.h / 2 - 4, width: place.w + 8, height: place.h + 8, rx: 9
    }),
    draw("rect", { class: "box", x: -place.w / 2, y: -place.h / 2, width: place.w, height: place.h, rx: 6 }),
    draw("text", { "text-anchor": "middle", dy: "0.35em", "font-size": place.size, text: name }),
  );
  const tags = [affected ? words.effect : unit.own ? "own" : "", cause ? words.cause : ""].filter(Boolean).join(" · ");
  const beside = place.above ? -place.h / 2 - 9 : place.h / 2 + (large ? 18 : 16);
  if (tags) group.append(
    draw("text", { class: "role", "text-anchor": "middle", y: beside, "font-size": large ? 12 : 10, text: tags })
  );
  return group;
}

export function legend() {
  const sample = (kind) => draw(
    "svg",
    { viewBox: "0 0 34 10", class: "key-line", "aria-hidden": "true" },
    draw(
      "g",
      { class: `edge ${kind}` },
      draw("line", { x1: 1, x2: 27, y1: 5, y2: 5, class: "shaft", "stroke-width": kind === "unknown" ? 1.6 : 2.6 }),
      draw("polygon", { points: "33,5 26,1.5 26,8.5", class: "head" })
    )
  );
  const one = (kind, text) => make("span", { class: "key" }, sample(kind), text);
  return make(
    "div",
    { class: "legend" },
    one("direct", "direct"),
    one("through", "only through others"),
    one("unknown", "not determined"),
    make("span", { class: "key", text: "width = strength" })
  );
}

export function strengthChoice(name, value, onChange) {
  return choices(name, "Strength shown", [["total", "Total"], ["direct", "Direct"]], value, onChange);
}

/** The same as a table. */
export function edgesTable(edges) {
  const body = make("tbody");
  const order = { direct: 0, "through others": 1, "not determined": 2, "none found": 3, "ruled out": 4 };
  for (
    const edge of [...edges].sort(
      (a, b) => order[a.kind] - order[b.kind] || (b.total_strength ?? 0) - (a.total_strength ?? 0)
    )
  ) {
    body.append(
      make(
        "tr",
        {},
        make("th", { scope: "row", text: `${edge.cause} → ${edge.effect}` }),
        make("td", { text: edge.kind }),
        ...[number(edge.direct_strength), number(edge.total_strength), chance(edge.q_value)].map(
          (text) => make("td", { class: "figure", text })
        )
      )
    );
  }
  const head = ["Influence", "Kind", "Direct", "Total", "q"].map(
    (text, index) => make("th", { scope: "col", class: index > 1 ? "figure" : null, text })
  );
  return make(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Influences as a table" },
    make("table", { class: "edges" }, make("thead", {}, make("tr", {}, ...head)), body)
  );
}
