// The operations in which the optimized programs of two cells differ, by source line, as `explain`
// lists them: see bench/present/program_sentences.py.

const MOST_OPERATIONS = 3; // Of one line that are named.
let programs = null; // A promise of all operations, which are expanded on the first comparison.

/* Source lines, most bytes first, with what A runs more often than B there, and the reverse. */
function linesBetween(a, b, { operations, cells }) {
  const more = new Map();
  for (const [cell, sign] of [[a, 1], [b, -1]]) {
    const own = cells[cell.number];
    for (let at = 0; at < own.length; at += 2)
      more.set(own[at], (more.get(own[at]) ?? 0) + sign * own[at + 1]);
  }
  const found = [...more]
    .filter(([, count]) => count)
    .map(([place, count]) => {
      const [source, opcode, result, size] = operations[place];
      const type = result.replace(/\/\*.*?\*\//g, "").replace(/^(.{60}).+/s, "$1\u2026");
      return { source, count, runs: Math.abs(count), what: `${opcode} ${type}`, size };
    });
  const bytesOf = (own) => own.reduce((sum, { runs, size }) => sum + runs * size, 0);
  return [...Map.groupBy(found, ({ source }) => source)]
    .sort(([one, own], [other, others]) => bytesOf(others) - bytesOf(own) || (one < other ? -1 : 1))
    .map(([source, own]) => ({
      source: source || "unknown",
      a: operationsTold(own.filter(({ count }) => count > 0)),
      b: operationsTold(own.filter(({ count }) => count < 0)),
    }));
}

/* `2 dot f32[8,16]{1,0}, 1 copy f32[16]{0}, 4 more`, most bytes first. */
function operationsTold(own) {
  const largest = [...own].sort((one, other) => other.runs * other.size - one.runs * one.size);
  const named = largest.slice(0, MOST_OPERATIONS).map(({ runs, what }) => `${runs} ${what}`);
  const rest = largest.slice(MOST_OPERATIONS).reduce((sum, { runs }) => sum + runs, 0);
  return [...named, ...(rest ? [`${rest} more`] : [])].join(", ");
}

/* The lines in which the programs of A and B differ as a table, or why there is none. */
async function programsBetween(a, b) {
  programs ??= DATA.programs ? expanded(DATA.programs) : Promise.resolve({ cells: {} });
  const found = await programs;
  const without = [a, b].filter(({ number: place }) => !found.cells[place]);
  if (without.length)
    return [nothing(`The page has no operations of ${without.map(({ full }) => full).join(" and ")}.`)];
  const rows = linesBetween(a, b, found);
  if (!rows.length) return [nothing("Their programs have the same operations at every source line.")];
  const meaning = "Operations per step and device, also inside fusions, that A runs more often than B";
  const note = `${meaning}, and the reverse; the lines with most bytes come first.`;
  const columns = [
    { key: "source", title: "Source line" },
    { key: "a", title: "A's operations", long: true },
    { key: "b", title: "B's operations", long: true },
  ];
  const title = "What their programs run, by source line";
  const table = makeTable({ title, name: "programs-compared", columns, rows });
  return [element("h3", title), nothing(note), table];
}
