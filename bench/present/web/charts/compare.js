// A waterfall from the traced step of one cell to that of another, cause by cause. The causes are
// those of `explain`; their nanoseconds are subtracted here: see bench/present/page_data.py.

const MOST_CAUSES = 8; // Bars of a waterfall; smaller causes share one.
const ROOM_BESIDE = 235; // Pixels for the names and the numbers beside the bars.

/* The time of each cause in a step of A and of B, largest changes first. */
function changesBetween(a, b) {
  const [here, there] = [a, b].map(
    ({ traced }) => new Map(traced.causes.map((cause, place) => [cause, traced.ns[place] / 1e9])),
  );
  const rows = unique([...here.keys(), ...there.keys()]).map((cause) => {
    const seconds = { a: here.get(cause) ?? 0, b: there.get(cause) ?? 0 };
    const detail = { what: onlyOneTransposes(cause, a.traced, b.traced) };
    return { ...CAUSES[cause], ...seconds, change: seconds.b - seconds.a, detail };
  });
  return largestFirst(rows);
}

/* The side whose operations change an array's layout, where both sides have operations. */
function onlyOneTransposes(cause, ...sides) {
  if (!sides.every(({ causes }) => causes.includes(cause))) return "";
  const [a, b] = sides.map(({ transposing }) => transposing.includes(cause));
  return a === b ? "" : `transposes in ${a ? "A" : "B"} only`;
}

const largestFirst = (rows) => rows.sort((a, b) => Math.abs(b.change) - Math.abs(a.change));
const total = (rows) => rows.reduce((sum, { change }) => sum + change, 0);

/* The bars between two steps: their largest causes, the smaller ones together, and idle time. */
function barsBetween(changes, [from, to]) {
  const kinds = [...Map.groupBy(changes, ({ what }) => what)];
  const sums = largestFirst(kinds.map(([what, own]) => ({ what, change: total(own) })));
  const idle = sums.filter(({ what }) => what === "idle");
  const causes = sums.filter(({ what }) => what !== "idle");
  const [shown, left] = [causes.slice(0, MOST_CAUSES), causes.slice(MOST_CAUSES)];
  const together = { what: `${left.length} smaller ${left.length === 1 ? "cause" : "causes"}`, change: total(left) };
  const every = [...shown, ...(left.length ? [together] : []), ...idle];
  const steps = every.map(({ what, change }) => ({
    ...{ what: what.replace(/ (?=(in|or|outside|recomputed)\b)/, "\n"), change },
    label: formatted(change, "+s"),
  }));
  const start = { what: "A", start: from, label: si(from, "s") };
  return [start, ...steps, { what: "B", label: si(to, "s") }];
}

/* A's time against B's while traced, and in the timed rounds. */
function apartTold(traced, timed) {
  const timeRatio = ([a, b]) =>
    a < 2 * b
      ? `${percent(Math.abs(a / b - 1))} ${a < b ? "less" : "more"} time`
      : `${significant(a / b)} times as long`;
  const start = `Against B, A took ${timeRatio(traced)} while the profiler was recording`;
  if (!timed.every(known)) return `${start}.`;
  const agree = timed[0] > timed[1] === traced[0] > traced[1];
  const times = `${start}; in the timed rounds, with a wait after every step, ${timeRatio(timed)}.`;
  return agree ? times : `${times} So the traces do not show what made the difference there.`;
}

function waterfall(a, b, width) {
  const untraced = [a, b].filter(({ traced }) => !traced);
  if (untraced.length) {
    const who = untraced.length === 2 ? "Neither was" : `${untraced[0] === a ? "A" : "B"} was not`;
    const unknown = "so what their difference comes from is not known: --profile records it.";
    return nothing(`${who} traced, ${unknown}`);
  }
  const changes = changesBetween(a, b);
  const traced = [a, b].map((cell) => cell.traced.parts.total);
  const rows = barsBetween(changes, traced);
  const { title, note } = CHARTS.compare;
  const drawn = Math.max(60, Math.min(700, width - ROOM_BESIDE));
  return figure("compare", { title, rows, width: drawn }, {
    title: `${title}: ${a.full}, ${b.full}`,
    caption: `${note} ${apartTold(traced, [a.latency_s, b.latency_s])}`,
    name: "causes-compared",
    rows: changes,
  });
}

GROUPS.compare = (target) => {
  const lists = [byId("a"), byId("b")];
  if (!lists[0].length) for (const list of lists) list.append(...cellOptions());
  const [a, b] = comparedPair();
  if (!b) return [nothing("The run has no two cells to compare.")];
  [lists[0].value, lists[1].value] = [a.full, b.full];
  const same = a.fingerprint && a.fingerprint === b.fingerprint;
  byId("compared-times").textContent =
    a === b
      ? "A and B are the same cell: choose another one."
      : timesSentence(a, b) + (same ? " Both run the same compiled program." : "");
  if (a === b) return [];
  const [why] = [[a, b], [b, a]]
    .filter(([one, other]) => one.block === other.block && other.isBaseline)
    .map(([one]) => one.traced?.why);
  const timed = known(a.step_s) && known(b.step_s);
  const lines = element("div", { id: "programs" });
  if (!same) drawLater(lines, programsBetween(a, b));
  const bars = timed && waterfall(a, b, widthOf(target));
  return [why && element("p", why), bars, differing(a, b), lines];
};
