// The place of the answer: sentence, plot, ranked table, caveats; or why there is none.
import { byId, make, put } from "./dom.js";
import { prose } from "./format.js";
import { clear, lineStyle, areaColour, show } from "./plots.js";

const FEW = 3;
const VERDICTS = { fails: "something fails", caution: "use with caution", clear: "nothing speaks against it" };
const KINDS = {
  UnidentifiedError: "The data cannot tell",
  UnstableError: "The plant would not settle",
  PrivacyError: "Not allowed by the policy",
};
const STATUSES = {
  400: "This cannot be answered as asked", 401: "No valid token",
  403: "Not allowed", 404: "Not found", 409: "The data cannot tell",
  413: "Too large a question", 422: "This question is not complete", 429: "Too many questions at once",
  503: "The coordinator does not answer"
};

/** A message in the answer's place; what was drawn before stays, greyed. */
export function fail(problem) {
  const title = KINDS[problem.type] ?? STATUSES[problem.status] ?? (
    problem.status === undefined ? "The page could not show the answer" : "No answer"
  );
  put(byId("answer-error"), make("strong", { text: title }), make("p", { text: prose(problem.message) }));
  byId("answer-error").hidden = false;
  byId("answer-hint").hidden = true;
  stale(true);
}

/** What is still to be done before there is a question. */
export function hint(text) {
  byId("answer-hint").textContent = text;
  byId("answer-hint").hidden = false;
  byId("answer-error").hidden = true;
  stale(true);
}

export function stale(old) {
  byId("answer").classList.toggle("stale", old);
}

/** An answer has come. assumptions: sentences that every answer of this seat rests on. */
export function fresh(answer, assumptions = []) {
  byId("answer-error").hidden = true;
  byId("answer-hint").hidden = true;
  stale(false);
  const place = byId("sentence");
  const sentence = prose(answer.sentence);
  if (place.textContent !== sentence) place.textContent = sentence;
  byId("window-sentence").textContent = prose(answer.window ?? "");
  const fit = answer.fit;
  byId("answer-source").textContent = fit ? `from fit ${fit.id} of ${fit.fitted.slice(0, 16).replace("T", " ")} UTC` : "";
  // choices of the fit are told once, with the fit
  caveats((answer.caveats ?? []).filter(({ weight }) => weight !== "choice"), assumptions, answer.verdict ?? null);
}

/** Nothing of another question stays. */
export function empty() {
  byId("sentence").textContent = "";
  byId("window-sentence").textContent = "";
  byId("answer-source").textContent = "";
  byId("answer-error").hidden = true;
  byId("answer-hint").hidden = true;
  for (const id of ["plot-tools", "key", "ranked-place", "extra"]) put(byId(id));
  byId("plot-place").hidden = true;
  clear(byId("answer-plot"));
  caveats([], []);
  stale(false);
}

let told = "";
let all = false;

function caveats(list, assumptions, verdict = null) {
  const place = byId("caveats");
  const key = JSON.stringify([list, assumptions, verdict]);
  byId("caveats-card").hidden = !list.length && !assumptions.length && verdict === null;
  if (key === told) return; // the same ones: nothing jumps while sliding
  told = key;
  const badge = byId("answer-verdict");
  badge.hidden = verdict === null;
  badge.className = `verdict ${verdict in VERDICTS ? verdict : "unknown"}`;
  badge.textContent = VERDICTS[verdict] ?? verdict ?? "";
  byId("caveats-card").className = `card ${verdict ?? ""}`;
  const first = Math.max(FEW, list.filter(({ weight }) => weight === "fails").length); // what fails is never folded
  const few = list.length > first + 1 && !all;
  put(
    place,
    ...(few ? list.slice(0, first) : list).map(
      ({ text, weight }) => make("li", { class: weight }, make("strong", { text: `${weight}: ` }), prose(text))
    )
  );
  place.hidden = !list.length;
  byId("assumptions").hidden = !assumptions.length;
  const count = assumptions.length === 1 ? "1 assumption" : `${assumptions.length} assumptions`;
  byId("assumptions-count").textContent = `Every answer rests on ${count}`;
  put(byId("assumptions-list"), ...assumptions.map((text) => make("li", { text: prose(text) })));
  const more = byId("more-caveats");
  more.hidden = list.length <= first + 1;
  more.textContent = few ? `${list.length - first} more` : "Show fewer";
  more.setAttribute("aria-expanded", String(!few));
  more.onclick = () => {
    all = few;
    told = "";
    caveats(list, assumptions, verdict);
  };
}

/** Draw in the answer's place. build(width) gives the figure. */
export function plot(build) {
  const element = byId("answer-plot");
  byId("plot-place").hidden = false;
  return show(element, () => build(Math.max(260, Math.floor(element.parentElement.clientWidth))));
}

/** What the lines mean: [{role, text}] of lines, or [{area, text}] of areas; band: text of the shade or null. */
export function key(items, band = null, bandRole = null) {
  put(
    byId("key"),
    ...items.map((item) => {
      const line = item.role ? lineStyle(item.role) : null;
      const mark = make(
        "span",
        {
          class: item.sum ? "swatch line" : line ? `swatch line${line.dash ? ` ${line.dash}` : ""}` : "swatch area",
          "aria-hidden": "true"
        }
      );
      mark.style.setProperty("--mark", `var(${line ? line.colour : item.sum ? "--ink" : areaColour(item.area)})`);
      return make("span", { class: "key" }, mark, item.text);
    }),
    band
      ? make(
        "span",
        { class: "key" },
        make(
          "span",
          { class: "swatch band", "aria-hidden": "true", style: { "--mark": `var(${lineStyle(bandRole).colour})` } }
        ),
        band
      )
      : null,
  );
}

/**
 * The ranked table.
 * @param {string} caption
 * @param {string[]} head titles; a title that starts with ">" is of a column of figures
 * @param {object[][]} rows cells: text, or {text, note, bar (0 to 1), low, high}
 */
export function table(caption, head, rows) {
  const kinds = head.map((title) => title.startsWith(">"));
  const body = make("tbody");
  for (const cells of rows) {
    const line = make("tr");
    cells.forEach((cell, index) => {
      const given = typeof cell === "string" ? { text: cell } : cell;
      const tag = index === 0 ? "th" : "td";
      const place = make(
        tag,
        {
          scope: index === 0 ? "row" : null,
          class: [kinds[index] ? "figure" : "", given.class ?? ""].filter(Boolean).join(" ") || null
        }
      );
      if (given.bar !== undefined) place.append(
        make(
          "span",
          { class: "bar", "aria-hidden": "true" },
          make("span", { style: { width: `${(100 * Math.max(0, Math.min(1, given.bar))).toFixed(1)}%` } })
        )
      );
      if (given.parts) place.append(parts(given.parts));
      if (given.text) place.append(make("span", { text: given.text }));
      if (given.note) place.append(make("span", { class: "unsure", text: given.note }));
      line.append(place);
    });
    body.append(line);
  }
  put(
    byId("ranked-place"),
    make("h2", { id: "ranked-title", text: caption }),
    make(
      "div", { class: "scroll", tabindex: 0, role: "region", "aria-labelledby": "ranked-title" },
      make(
        "table",
        { id: "ranked" },
        make(
          "thead",
          {},
          make(
            "tr",
            {},
            ...head.map(
              (title, index) => make(
                "th", { scope: "col", class: kinds[index] ? "figure" : null, text: title.replace(/^>/, "") }
              )
            )
          )
        ),
        body
      ),
    ),
  );
}

/**
 * Signed parts as one bar around its middle: [{area, value}], scaled so that the largest sum of a side is half the
 * bar.
 */
function parts({ list, most }) {
  const bar = make("span", { class: "parts", "aria-hidden": "true" });
  let [up, down] = [50, 50];
  for (const { area, value } of list) {
    const wide = (50 * Math.abs(value)) / (most || 1);
    const left = value >= 0 ? up : down - wide;
    if (value >= 0) up += wide;
    else down -= wide;
    bar.append(
      make("span", { style: { left: `${left}%`, width: `${wide}%`, background: `var(${areaColour(area)})` } })
    );
  }
  return bar;
}

/** Chips to choose what is drawn. chosen: names or null (the page's choice); shown: what is drawn now. */
export function chips(names, chosen, shown, onChoose, { auto = "Most affected", most = 8, single = false } = {}) {
  const list = make("div", { class: "chips", role: "group", "aria-label": "Channels to draw", id: "draw" });
  const now = new Set(chosen ?? shown);
  list.append(chip(auto, "", chosen === null, () => onChoose(null)));
  for (const name of names) {
    list.append(
      chip(name, name, now.has(name), () => {
        if (single) return onChoose(name);
        const next = new Set(now);
        if (next.has(name)) next.delete(name);
        else next.add(name);
        if (next.size > most) return undefined;
        return onChoose(next.size ? names.filter((one) => next.has(one)) : null);
      }, chosen === null),
    );
  }
  return list;
}

function chip(text, name, pressed, onClick, soft = false) {
  return make(
    "button",
    {
      type: "button",
      class: `chip${soft && pressed ? " soft" : ""}${name ? "" : " auto"}`,
      "aria-pressed": String(pressed),
      data: { draw: name },
      text,
      on: { click: onClick }
    }
  );
}

/** The tools above the plot; left alone if nothing about them has changed, so that focus stays. */
export function tools(mark, build) {
  const place = byId("plot-tools");
  if (place.dataset.mark === mark && place.childElementCount) return;
  const focused = place.contains(document.activeElement) ? document.activeElement : null;
  const [again, id] = [focused?.dataset.draw, focused?.id];
  put(place, ...build());
  place.dataset.mark = mark;
  if (id) byId(id)?.focus();
  else if (again !== undefined) for (const one of place.querySelectorAll("[data-draw]")) if (
    one.dataset.draw === again
  ) one.focus();
}
