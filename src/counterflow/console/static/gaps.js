// Where rows are missing, or time jumps: nothing is drawn across.

/** The way round a band: once around each stretch without missing values, so that nothing is shaded across a gap. */
export function outline(x, lower, upper) {
  const way = { x: [], y: [] };
  let start = 0;
  for (let k = 0; k <= x.length; k += 1) {
    if (k < x.length && lower[k] !== null && upper[k] !== null) continue;
    if (k > start) {
      if (way.x.length) for (const list of [way.x, way.y]) list.push(null);
      way.x.push(...x.slice(start, k), ...x.slice(start, k).reverse());
      way.y.push(...upper.slice(start, k), ...lower.slice(start, k).reverse());
    }
    start = k + 1;
  }
  return way;
}

/** Places among rows first, first + 1, ... before which time jumps. */
export function jumps(first, count, calendar) {
  const found = (calendar?.jumps ?? []).map(([row]) => row - first);
  return found.filter((place) => place > 0 && place < count);
}

/** Values with a hole before each of these places; no values stay none. */
export function broken(values, places) {
  if (!values) return values;
  const list = [...values];
  for (const place of [...places].reverse()) list.splice(place, 0, null);
  return list;
}
