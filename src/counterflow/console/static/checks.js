// Checks of the fit: a few words beside every answer, the whole list on its own tab.
import { get, seatPath } from "./api.js";
import { byId, make, put } from "./dom.js";
import { prose } from "./format.js";

const VERDICTS = { pass: "passed", caution: "caution", fail: "failed", unknown: "not known" };
const ORDER = { fail: 0, caution: 1, unknown: 2, pass: 3 };
const QUIET = 1200; // ms after the first answer: checks take the server longer than a question

/** The checks of a seat, asked once; kept with what is known of the seat. */
export function checksOf(current) {
  current.checks ??= get(seatPath(current.seat, "checks")).catch((problem) => {
    current.checks = null; // it may be asked again
    throw problem;
  });
  return current.checks;
}

function badge(verdict, text = VERDICTS[verdict] ?? verdict, id = null) {
  return make("span", { class: `verdict ${verdict in ORDER ? verdict : "unknown"}`, id, text });
}

/** The verdict of all checks together, which is that of the worst. */
export function verdictOfAll(verdict, id = null) {
  const text = VERDICTS[verdict] ?? verdict;
  return badge(verdict, verdict === "pass" ? `all checks: ${text}` : `worst of all checks: ${text}`, id);
}

/** Checks as a list, the worst first. */
export function checksList(checks, id) {
  return make(
    "ul", { class: "checks", id },
    ...[...checks].sort((a, b) => ORDER[a.verdict] - ORDER[b.verdict]).map((check) => make(
      "li", { data: { check: check.name } }, badge(check.verdict),
      make(
        "div", {}, make("strong", { text: check.unit ? `${check.name}, ${check.unit}` : check.name }),
        make("p", { text: prose(check.sentence) }),
        check.remedy && check.verdict !== "pass" ? make("p", { class: "muted", text: prose(check.remedy) }) : null,
      ),
    )),
  );
}

/** The card beside the answer: the verdict, and whatever did not pass. open: shows the whole list. */
export function checksBeside(current, open) {
  const place = byId("checks-beside");
  place.hidden = true;
  const { allowed } = current.plant.questions.checks ?? { allowed: true };
  if (!allowed) return;
  setTimeout(async () => {
    try {
      const { verdict, checks } = await checksOf(current);
      if (!current.stillHere()) return;
      const wrong = checks.filter((check) => check.verdict !== "pass");
      put(
        place,
        make("div", { class: "row between" }, make("h2", { text: "Checks of the fit" }), verdictOfAll(verdict)),
        wrong.length
          ? make(
            "ul",
            { class: "brief" },
            ...wrong.slice(0, 3).map(
              (check) => make("li", { text: check.unit ? `${check.name}, ${check.unit}` : check.name })
            )
          )
          : null,
        make(
          "button",
          {
            type: "button", class: "small", id: "open-checks", text: `All ${checks.length} checks`, on: { click: open }
          }
        ),
      );
      place.hidden = false;
    } catch {
      // the tab of influence says why
    }
  }, QUIET);
}
