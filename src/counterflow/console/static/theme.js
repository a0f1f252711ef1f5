// Light, dark, or as the system says; plots are drawn again in the new colours.
import { byId } from "./dom.js";
import { again, forgetColours } from "./plots.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
const KEPT = "counterflow-theme";

export function redrawPlots() {
  forgetColours();
  for (const element of document.querySelectorAll(".plot")) again(element);
}

function kept() {
  try {
    return localStorage.getItem(KEPT);
  } catch {
    return null; // a browser that keeps nothing
  }
}

function wear(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  redrawPlots();
}

export function startTheme() {
  const control = byId("theme");
  const before = kept();
  control.value = ["light", "dark"].includes(before) ? before : "auto";
  wear(control.value);
  control.addEventListener("change", () => {
    try {
      localStorage.setItem(KEPT, control.value);
    } catch {
      // not kept: it lasts as long as the page
    }
    wear(control.value);
  });
  dark.addEventListener("change", redrawPlots);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // on a phone the height changes when the address bar hides
    width = innerWidth;
    requestAnimationFrame(redrawPlots);
  });
}
