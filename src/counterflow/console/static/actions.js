// Sharing an answer: the link, files the server makes, and the plot as a picture.
import { download, seatPath } from "./api.js";
import { byId } from "./dom.js";
import { copy, write } from "./link.js";
import { picture } from "./plots.js";

function save(name, address) {
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  document.body.append(anchor);
  anchor.click();
  anchor.remove();
}

const NO_REPORT = {}; // why a kind of question has no report

/** What can be saved of this kind of question; the button that is of no use stays in reach and says why. */
export function offer(ask) {
  const why = NO_REPORT[ask] ?? "";
  const button = byId("export-html");
  button.title = why;
  if (why) button.setAttribute("aria-disabled", "true");
  else button.removeAttribute("aria-disabled");
  byId("no-report").textContent = why;
}

let fading = null;

function told(text) {
  byId("action-note").textContent = text;
  clearTimeout(fading);
  fading = setTimeout(() => (byId("action-note").textContent = ""), 4000);
}

/** current() -> {seat, ask, body} of what is asked, body null if nothing is. */
export function startActions(current) {
  byId("copy-link").addEventListener("click", async () => {
    const { seat, ask, body } = current();
    const address = location.origin + location.pathname + write({ seat, ask, question: body });
    told((await copy(address)) ? "Link copied." : "The browser did not allow it: copy the address instead.");
  });
  for (const format of ["json", "csv", "html"]) {
    byId(`export-${format}`).addEventListener("click", async () => {
      const { seat, ask, body } = current();
      if (format === "html" && NO_REPORT[ask]) return told(NO_REPORT[ask]);
      if (body === null) return told("There is no question yet.");
      try {
        const { name, blob } = await download(
          seatPath(seat, `export/${format}`), { question: { kind: ask, ...body } }, `${ask}.${format}`
        );
        const address = URL.createObjectURL(blob);
        save(name, address);
        setTimeout(() => URL.revokeObjectURL(address), 60_000);
        told(`${name} saved.`);
      } catch (problem) {
        told(problem.message);
      }
      return undefined;
    });
  }
  byId("export-html").addEventListener("focus", () => NO_REPORT[current().ask] && told(NO_REPORT[current().ask]));
  byId("export-png").addEventListener("click", async () => {
    const element = byId("answer-plot");
    if (!element.wanted) return told("There is no plot yet.");
    try {
      save(`${current().ask}.png`, await picture(element, byId("sentence").textContent));
      told(`${current().ask}.png saved.`);
    } catch (problem) {
      told(`The picture could not be made: ${problem.message ?? problem}`);
    }
    return undefined;
  });
}
