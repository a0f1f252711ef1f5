// Talking to the console's server: JSON both ways, and every failure as one of two errors.

/** The server answered with an error of its own, in words for people. */
export class Refused extends Error {
  constructor(status, type, message, retryAfter = null) {
    super(message);
    this.status = status;
    this.type = type;
    this.retryAfter = retryAfter;
  }
}

/** Nobody answered. */
export class Gone extends Error {}

const listeners = new Set();
let state = "connected";

const TRIES = 5; // at a server that is busy, and says for how long
const TOKENS = { NoToken: "no-token", WrongToken: "wrong-token", ExpiredToken: "expired" };

/** Be told when the connection becomes "connected", "gone", "no-token", "wrong-token" or "expired". */
export function onConnection(listener) {
  listeners.add(listener);
}

function become(next) {
  if (next === state) return;
  const before = state;
  state = next;
  if (next === "gone") setTimeout(tryAgain, 1000);
  for (const listener of listeners) listener(next, before);
}

export function tryAgain() {
  if (state === "gone") get("/api/seats").catch(() => setTimeout(tryAgain, 2000));
}

async function ask(path, options, tries = TRIES) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch (problem) {
    become("gone");
    throw new Gone(String(problem));
  }
  const refused = response.ok ? null : await refusal(response);
  become(response.status === 401 ? TOKENS[refused.type] ?? "no-token" : "connected");
  if (refused?.retryAfter && tries > 1) {
    await new Promise((resolve) => setTimeout(resolve, 1000 * refused.retryAfter * (0.5 + Math.random())));
    return ask(path, options, tries - 1);
  }
  if (refused) throw refused;
  return response;
}

async function refusal(response) {
  let type = "Error";
  let message = `The server answered ${response.status} ${response.statusText}`.trim() + ".";
  try {
    const { error } = await response.json();
    if (error && typeof error.message === "string") ({ type, message } = error);
  } catch {
    // not JSON: the status line has to do
  }
  const wait = Number(response.headers.get("Retry-After"));
  return new Refused(response.status, type, message, Number.isFinite(wait) && wait > 0 ? wait : null);
}

export async function get(path) {
  return (await ask(path, {})).json();
}

function posting(body) {
  return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
}

export async function post(path, body) {
  return (await ask(path, posting(body))).json();
}

/** A file the server makes: {name, blob}. */
export async function download(path, body, fallback) {
  const response = await ask(path, posting(body));
  const told = /filename="?([^";]+)"?/.exec(response.headers.get("Content-Disposition") ?? "");
  return { name: told ? told[1] : fallback, blob: await response.blob() };
}

export function seatPath(seat, rest) {
  return `/api/seats/${encodeURIComponent(seat)}/${rest}`;
}

/**
 * At most one question under way; of those that come meanwhile only the newest is kept and goes next.
 * @param {(item: object) => Promise<object>} send
 * @param {(item: object, answer: object|null, problem: Error|null) => void} done
 */
export function latestOnly(send, done) {
  let flying = false;
  let waiting = null;
  async function go(item) {
    flying = true;
    let answer = null;
    let problem = null;
    item.sent = performance.now();
    try {
      answer = await send(item);
    } catch (caught) {
      problem = caught;
    }
    item.received = performance.now();
    flying = false;
    if (waiting !== null) {
      const next = waiting;
      waiting = null;
      go(next); // before drawing: the server works while the browser draws
    }
    done(item, answer, problem);
  }
  return (item) => {
    if (flying) waiting = item;
    else go(item);
  };
}
