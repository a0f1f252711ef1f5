// A question as a link: the fragment of the address holds {"seat", "ask", "question"} as JSON.

const QUIET = 300; // ms between two writes while sliding: browsers refuse more than some hundred in half a minute

let waiting = null;
let latest = null;

export function write({ seat, ask, question }) {
  return `#${encodeURIComponent(JSON.stringify({ seat, ask, question }))}`;
}

/** What the address asks: null if nothing; throws where it cannot be read. */
export function read(fragment = location.hash) {
  if (fragment.length < 2) return null;
  const told = JSON.parse(decodeURIComponent(fragment.slice(1)));
  if (typeof told !== "object" || told === null || Array.isArray(told)) throw new Error("it does not hold a question");
  const { seat = null, ask = null, question = null } = told;
  if (seat !== null && typeof seat !== "string") throw new Error("its seat is not a name");
  if (ask !== null && typeof ask !== "string") throw new Error("its ask is not a name");
  if (question !== null && (typeof question !== "object" || Array.isArray(question))) throw new Error(
    "its question is not an object"
  );
  return { seat, ask, question };
}

/** The address follows the question; a new kind of question or another seat is a step one can go back from. */
export function follow(told, step = false) {
  latest = write(told);
  if (step) {
    clearTimeout(waiting);
    waiting = null;
    if (latest !== location.hash) history.pushState(null, "", latest);
  } else if (waiting === null) {
    waiting = setTimeout(() => {
      waiting = null;
      history.replaceState(null, "", latest);
    }, QUIET);
  }
}

/** Before leaving a question, its last form gets into the address that "back" returns to. */
export function settle() {
  if (waiting === null) return;
  clearTimeout(waiting);
  waiting = null;
  history.replaceState(null, "", latest);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // no clipboard without https or on refusal: the old way
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "unseen";
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
