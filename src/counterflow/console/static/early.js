// Asks who sits here and what the plant is while the browser still fetches the modules, which then find the answers.
// Whatever goes wrong here is left to them: they ask again, and say so.
window.counterflowEarly = (async () => {
  const ask = async (path) => {
    const response = await fetch(path, { credentials: "same-origin", cache: "no-store" });
    if (!response.ok) throw new Error(response.statusText);
    return response.json();
  };
  const seats = await ask("/api/seats");
  const told = location.hash.length > 1 ? JSON.parse(decodeURIComponent(location.hash.slice(1))).seat : null;
  const seat = seats.seats.some((one) => one.id === told) ? told : seats.first;
  const place = `/api/seats/${encodeURIComponent(seat)}`;
  const plant = await ask(`${place}/plant`);
  const graph = plant.questions.graph?.allowed === false ? null : ask(`${place}/graph`).catch(() => null);
  return { seats, seat, plant, graph };
})().catch(() => null);
