// The page: who sits here, which question is asked, and the way of an answer onto the screen.
import { Gone, get, latestOnly, onConnection, post, seatPath, tryAgain } from "./api.js";
import { byId, make, put } from "./dom.js";
import { drawGraph, edgesTable, legend, strengthChoice } from "./graph.js";
import { refusal } from "./causes.js";
import { plotly } from "./plots.js";
import { startTheme } from "./theme.js";
import { offer, startActions } from "./actions.js";
import { forgetLogs } from "./window.js";
import { checksBeside } from "./checks.js";
import { LeftOut } from "./told.js";
import * as link from "./link.js";
import * as view from "./answer.js";
import { effect } from "./tabs/effect.js";
import { past } from "./tabs/past.js";
import { explain } from "./tabs/explain.js";
import { restore } from "./tabs/restore.js";
import { forecast } from "./tabs/forecast.js";
import { aggregate } from "./tabs/aggregate.js";
import { influence } from "./tabs/influence.js";
import { other } from "./tabs/other.js";

const TABS = { effect, past, explain, restore, forecast, aggregate };
const TITLES = {
  effect: "What if", past: "Would have been", explain: "Explain", restore: "Restore", forecast: "Forecast",
  aggregate: "All others (Q3)",
  influence: "Influence & training"
};
const INSIDE = ["paths"]; // shown with the answer of another tab
const GRAPH_WAIT = 2000; // ms the first question waits for the graph, to begin with the strongest cause
const TOKENS = {
  "no-token": ["No token", "This console asks for a token: open the address that it printed."],
  "wrong-token": [
    "Wrong token", "This token is not the console's: open the address that it printed when it started, which holds it."
  ],
  expired: ["Token expired", "Token expired: start the console again and open the address it prints."],
};

const isKind = (name) => name !== null && Object.hasOwn(TITLES, name);

/** {input, sent, received, drawn} of every answer that was drawn, in ms of performance.now(); for benchmarks. */
window.counterflowTimings = [];

let seats = null;
let early = null; // what early.js has asked before the modules were there
let current = null; // {seat, plant, graph, graphReason, questions}
let ask = "effect";
let strength = "total";
let latestDrawn = 0;
let asked = 0;

const send = latestOnly(
  (item) => post(seatPath(item.seat, item.ask), item.body),
  async (item, answer, problem) => {
    if (item.sitting !== current || item.ask !== ask || item.number < latestDrawn) return;
    latestDrawn = item.number;
    byId("answer").setAttribute("aria-busy", "false");
    if (problem !== null) {
      if (problem.retryAfter) setTimeout(() => item.number === asked && changed(), 1000 * problem.retryAfter);
      if (!(problem instanceof Gone)) view.fail(problem);
      else view.stale(true);
      return;
    }
    try {
      view.fresh(answer, current.plant.assumptions ?? []);
      const drawing = TABS[ask].show(answer, current.questions[ask], context); // at first a sketch
      if (!window.Plotly) requestAnimationFrame(() => performance.mark("counterflow-sketched"));
      if (!(await drawing)) return;
    } catch (caught) {
      view.fail(caught);
      return;
    }
    requestAnimationFrame(() => {
      window.counterflowTimings.push(
        { input: item.input, sent: item.sent, received: item.received, drawn: performance.now() }
      );
      if (window.counterflowTimings.length > 5000) window.counterflowTimings.splice(0, 1000);
    });
  },
);

/** What tabs may know and do. */
const context = {
  get current() { return current; },
  get seat() { return current.seat; },
  get plant() { return current.plant; },
  get graph() { return current.graph; },
  get graphReason() { return current.graphReason; },
  logChannel: null,
  changed,
  rebuild,
  regraph,
  toggle,
  open(next, question) {
    link.settle();
    if (TABS[next]) current.questions[next] = fitted(next, question, current.plant);
    choose(next, true);
    byId("panel").focus();
  },
  isCurrent: (kind, question) => ask === kind && current.questions[kind] === question,
};

/** The question has changed: into the address, and to the server. */
function changed(when = performance.now()) {
  const question = current.questions[ask];
  if (ask === "influence" || byId("workspace").hidden || !question) return; // a seat that is just being taken has none
  const body = TABS[ask].body(question);
  asked += 1;
  if (body === null) {
    latestDrawn = asked;
    byId("answer").setAttribute("aria-busy", "false");
    const { missing } = TABS[ask];
    view.hint(typeof missing === "function" ? missing(question) : missing);
    return;
  }
  link.follow({ seat: current.seat, ask, question: body });
  byId("answer").setAttribute("aria-busy", "true");
  send({ sitting: current, seat: current.seat, ask, body, number: asked, input: when });
}

function questionNow() {
  const body = TABS[ask] && current.questions[ask] ? TABS[ask].body(current.questions[ask]) : null;
  return { seat: current.seat, ask, body };
}

function allowed(kind) {
  return current.plant.questions[kind] ?? { allowed: true, reason: "" };
}

function rebuild() {
  const focused = document.activeElement?.id;
  TABS[ask].controls(byId("controls"), current.questions[ask], context);
  regraph();
  if (focused && document.activeElement?.id !== focused) byId(focused)?.focus();
}

function toggle(name) {
  TABS[ask].toggle(current.questions[ask], name, current.plant);
  rebuild();
  changed();
}

function regraph() {
  const tab = TABS[ask];
  const question = current.questions[ask];
  const { plant, graph, graphReason } = current;
  drawGraph(byId("graph"), {
    units: plant.units, edges: graph?.edges ?? null, causes: tab.picked(question), effect: tab.affected(question),
    words: tab.words, strength,
    pick: tab.graph === "pick" ? toggle : null, refusal: tab.graph === "pick" ? refusal : null, large: false,
    note: byId("graph-note"),
  });
  byId("graph-hint").textContent = tab.heading;
  byId("graph-reason").textContent = graph ? "" : graphReason;
  byId("graph-reason").hidden = Boolean(graph);
  for (const id of ["graph-legend", "graph-text", "graph-strength"]) byId(id).hidden = !graph;
  byId("graph-note").hidden = !graph && tab.graph !== "pick";
}

/** Show a tab, its question as it was left or as it begins. */
function choose(next, step) {
  ask = next;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const chosen = tab.dataset.ask === ask;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
  }
  byId("panel").setAttribute("aria-labelledby", `tab-${ask}`);
  const { allowed: may, reason } = ask === "influence" ? { allowed: true } : allowed(ask);
  byId("workspace").hidden = ask === "influence" || !may;
  byId("influence").hidden = ask !== "influence";
  byId("refused").hidden = may;
  byId("window-place").hidden = true;
  view.empty();
  offer(ask);
  document.title = `${TITLES[ask]} · ${seats.title || "Counterflow"}`;
  if (!may) {
    put(
      byId("refused"), make("h2", { text: `${TITLES[ask]} is not possible at this seat` }), make("p", { text: reason })
    );
    link.follow({ seat: current.seat, ask, question: null }, step);
    return;
  }
  if (ask === "influence") {
    influence(context);
    link.follow({ seat: current.seat, ask, question: null }, step);
    return;
  }
  current.questions[ask] ??= TABS[ask].begin(current.plant, current.graph);
  link.follow({ seat: current.seat, ask, question: TABS[ask].body(current.questions[ask]) }, step);
  rebuild();
  changed();
}

function buildTabs() {
  const list = byId("tabs");
  const keys = Object.keys(TITLES);
  put(
    list,
    ...keys.map((kind) => {
      const { allowed: may, reason } = kind === "influence" ? { allowed: true } : allowed(kind);
      return make(
        "button", {
          type: "button", role: "tab", id: `tab-${kind}`, "aria-controls": "panel", "aria-selected": "false",
          "aria-disabled": may ? null : "true", "aria-describedby": may ? null : `why-${kind}`, data: { ask: kind },
          on: {
            click: () => (link.settle(), choose(kind, true)),
            keydown: (event) => {
              const move = {
                ArrowRight: 1, ArrowLeft: -1, Home: -keys.indexOf(kind), End: keys.length - 1 - keys.indexOf(kind)
              }[event.key];
              if (move === undefined) return;
              event.preventDefault();
              const next = keys[(keys.indexOf(kind) + move + keys.length) % keys.length];
              link.settle();
              choose(next, true);
              byId(`tab-${next}`).focus();
            },
          },
        },
        make("span", { text: TITLES[kind] }),
        may ? null : make("span", { class: "why", id: `why-${kind}`, text: reason }),
      );
    }),
  );
}

/** Sit down at a seat and ask. told: {ask, question} of a link, or null. */
async function sit(seat, told, step) {
  byId("seat").value = seat;
  byId("loading").hidden = false;
  let plant;
  const soon = early?.seat === seat ? early : null;
  early = null; // a seat that is taken later is asked about again
  try {
    plant = soon?.plant ?? (await get(seatPath(seat, "plant")));
  } catch (problem) {
    byId("loading").hidden = true;
    byId("workspace").hidden = true;
    byId("refused").hidden = false;
    put(
      byId("refused"),
      make("h2", { text: "This seat cannot be shown" }),
      make("p", { text: problem instanceof Gone ? "The console's server does not answer." : problem.message })
    );
    return;
  }
  if (byId("seat").value !== seat) return; // another one was chosen meanwhile
  const mine = {
    seat, plant, graph: null, graphReason: "", checks: null, questions: {}, stillHere: () => current === mine
  };
  current = mine;
  context.logChannel = null;
  forgetLogs();
  for (const [kind, { title, form }] of Object.entries(plant.questions)) {
    if (!form?.length || TABS[kind] || INSIDE.includes(kind)) continue;
    TABS[kind] = other(kind, { title, form });
    TITLES[kind] = title;
  }
  buildTabs();
  told = known(told);
  const kind = told && isKind(told.ask) ? told.ask : ask;
  const coming = fetchGraph(mine, soon?.graph ?? null);
  if (told?.question && TABS[kind]) mine.questions[kind] = fitted(kind, told.question, plant);
  else await Promise.race([coming, new Promise((resolve) => setTimeout(resolve, GRAPH_WAIT))]);
  if (current !== mine) return;
  byId("loading").hidden = true;
  choose(kind, step);
  await coming;
  if (current === mine) {
    if (ask === "influence") influence(context);
    else if (!byId("workspace").hidden) regraph();
    graphText(mine);
    checksBeside(mine, () => context.open("influence"));
  }
}

/** A question of a link as one of this plant; what is left out of it is said. */
function fitted(kind, question, plant) {
  const left = new LeftOut();
  const found = TABS[kind].fit(question ?? {}, plant, left);
  for (const sentence of left.sentences()) notice(sentence);
  return found;
}

async function fetchGraph(mine, soon) {
  const { allowed: may, reason } = mine.plant.questions.graph ?? { allowed: true, reason: "" };
  mine.graphReason = may ? "The graph of influences is on its way." : reason;
  if (!may) return;
  try {
    mine.graph = (await soon) ?? (await get(seatPath(mine.seat, "graph")));
  } catch (problem) {
    mine.graphReason = problem.message;
  }
}

function graphText({ graph }) {
  put(byId("graph-legend"), legend());
  put(byId("graph-strength"), strengthChoice("strength", strength, (next) => {
    strength = next;
    regraph();
  }));
  put(byId("graph-edges"), graph ? edgesTable(graph.edges) : "");
}

/** A link, without the question if it is of a kind that nobody knows here. */
function known(told) {
  if (told === null || told.ask === null || isKind(told.ask)) return told;
  notice(`The link asks a kind of question that this page does not know ("${told.ask.slice(0, 60)}").`);
  return { ...told, ask: null, question: null };
}

/** The link in the address, or the first seat. */
async function follow(step = false) {
  let told = null;
  unnotice();
  try {
    told = link.read();
  } catch (problem) {
    notice(`The link could not be read (${problem.message}); this is a fresh start.`);
  }
  let seat = told?.seat ?? seats.first;
  if (!seats.seats.some((one) => one.id === seat)) {
    notice(`The link is of a seat this console does not offer (${seat}); this is ${seats.first}.`);
    [seat, told] = [seats.first, null];
  }
  if (current?.seat === seat && told) {
    told = known(told);
    byId("seat").value = seat;
    const kind = isKind(told.ask) ? told.ask : "effect";
    if (told.question && TABS[kind]) current.questions[kind] = fitted(kind, told.question, current.plant);
    choose(kind, step);
  } else await sit(seat, told, step);
}

function notice(text) {
  byId("notice").append(make("div", { text }));
  byId("notice").hidden = false;
}

function unnotice() {
  put(byId("notice"));
  byId("notice").hidden = true;
}

async function start() {
  byId("loading").hidden = false;
  early = (await window.counterflowEarly) ?? null;
  window.counterflowEarly = null;
  seats = early?.seats ?? (await get("/api/seats"));
  byId("title").textContent = seats.title;
  byId("version").textContent = seats.version;
  put(
    byId("seat"),
    ...seats.seats.map(
      (one) => make("option", { value: one.id, text: one.kind === "server" ? "Server" : `Unit: ${one.unit}` })
    )
  );
  byId("seat").disabled = seats.seats.length < 2;
  await follow();
}

/** Whether this is still the console that the page is of; if another one answers here now, the page begins again. */
async function sameConsole() {
  const { started } = await get("/api/seats");
  if (!started || !seats.started || started === seats.started) return true;
  link.settle(); // the question stays in the address
  location.reload();
  return false;
}

function connection(state) {
  const texts = { connected: "Connected", gone: "No answer" };
  const [short, long] = TOKENS[state] ?? [texts[state], ""];
  byId("connection").textContent = short;
  byId("connection").className = `connection ${TOKENS[state] ? "expired" : state}`;
  const banner = byId("banner");
  banner.hidden = state === "connected";
  if (state === "gone") put(
    banner,
    "The console's server does not answer; trying again. ",
    make("button", { type: "button", id: "retry", text: "Try now", on: { click: tryAgain } })
  );
  else put(banner, long);
  if (state === "connected") connected().catch(() => {}); // what goes wrong is another state of the connection
}

async function connected() {
  if (seats === null) return start();
  if (!(await sameConsole())) return undefined;
  if (current === null) return follow();
  if (ask === "influence") return influence(context);
  return changed();
}

onConnection(connection);
startTheme();
startActions(questionNow);
byId("seat").addEventListener("change", (event) => {
  link.settle();
  unnotice();
  sit(event.target.value, null, true);
});
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("panel").focus();
});
addEventListener("popstate", () => seats && follow());
const look = () => document.visibilityState === "visible" && seats && sameConsole().catch(() => {});
setInterval(look, 10_000);
document.addEventListener("visibilitychange", look);
start().catch((problem) => {
  byId("loading").hidden = true;
  if (!(problem instanceof Gone) && problem.status !== 401) notice(problem.message);
});
// a plot asks for the drawing library; without one it is fetched when things are quiet
setTimeout(() => plotly().catch(() => {}), 4000);
