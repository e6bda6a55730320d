// Comparison of two cells of the run: their selection, the ratio of their times, and a table of
// differences. charts/compare.js draws the attribution of the time difference.

const named = (name) => CELL_OF.get(chosen(name));

/* The default counterpart of a cell: its baseline, or the fastest other cell of its block. */
function opponentOf(cell) {
  const others = CELLS.filter(
    (one) => one.block === cell.block && one !== cell && known(one.step_s),
  );
  return others.find((one) => one.isBaseline) ?? others.sort((a, b) => a.step_s - b.step_s)[0];
}

/* The cells that are compared: those chosen, or the described cell and its counterpart. */
function comparedPair() {
  const a = named("a") ?? currentCell();
  return [a, named("b") ?? (a && opponentOf(a))].filter(Boolean);
}

function choosePair(a, b) {
  narrow({ a, b }, drawnWith("compare"), "compare");
  [byId("a").value, byId("b").value] = [a, b]; // also if the next click comes before the drawing
}

/* All cells that ran, by workload, for a list to choose from. */
function cellOptions() {
  const text = ({ name, status, of }) =>
    `${name}, ${of.place}${status === "ok" ? "" : ` (${status})`}`;
  const ran = CELLS.filter(({ status }) => status !== "unsupported");
  return [...Map.groupBy(ran, (cell) => cell.of.subjectName)].map(([label, own]) =>
    element("optgroup", { label }, ...optionsOf(own.map((cell) => [cell.full, text(cell)]))),
  );
}

/* The ratio of A's time to B's and the ends of its interval, if they shared rounds. */
function timesBeside(a, b) {
  if (a.block !== b.block) return null;
  const { ratios } = a.of;
  const inverse = ratios[`${b.arm}/${a.arm}`]?.map((value) => value && 1 / value);
  return ratios[`${a.arm}/${b.arm}`] ?? (inverse && [inverse[0], inverse[2], inverse[1]]);
}

/* The ratio of the times of A and B in words, with its interval. */
function timesSentence(a, b) {
  const without = [a, b].find((cell) => !known(cell.step_s));
  if (without) return `${without.full} has no time: ${without.reason || without.status}.`;
  const beside = timesBeside(a, b);
  if (!beside)
    return (
      `By their medians, A took ${ratio(a.step_s / b.step_s)} times as long as B. They were not ` +
      "timed in the same rounds, so this includes what changed on the host in between."
    );
  const [value, low, high] = beside;
  const took = `Side by side, A took ${ratio(value)} times as long as B`;
  if (!known(low)) return `${took}, in too few rounds for an interval.`;
  const neither = low <= 1 && high >= 1 ? " Neither is surely faster." : "";
  const all = "which holds for all pairs of their block at once";
  return `${took} (surely between ${ratio(low)} and ${ratio(high)}, ${all}).${neither}`;
}

const RELATIVE = ["percent", "ratio"]; // Formats of values that are already relative.

/* A table with a row for each column in which two cells differ. */
function differing(a, b) {
  const rows = DATA.cells.columns
    .filter(({ key }) => !["implementation", "again"].includes(key))
    .filter(({ key, format }) => formatted(a[key], format) !== formatted(b[key], format))
    .map(({ key, title, note, format }) => ({
      ...{ what: note ? `${title}, ${note}` : title, a: a[key], b: b[key], format },
      over: !RELATIVE.includes(format) && Number(a[key]) && Number(b[key]) ? a[key] / b[key] : null,
      detail: { a: a.detail[key], b: b.detail[key] },
    }));
  const format = (value, row) => formatted(value, row.format);
  const title = "What differs";
  const columns = [
    { key: "what", title },
    { key: "a", title: `A: ${a.name}`, note: whereOf(a), format, long: true },
    { key: "b", title: `B: ${b.name}`, note: whereOf(b), format, long: true },
    number("over", "A over B", "ratio"),
  ];
  return element("div.pair", makeTable({ title, name: "compared", columns, rows }));
}
