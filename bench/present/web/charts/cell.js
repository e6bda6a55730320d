// The description of one cell.

/* The chosen cell, or the most informative one. */
function currentCell() {
  const asked = CELL_OF.get(chosen("cell"));
  if (asked) return asked;
  const own = CELLS.filter((cell) => cell.of.subject === subjectNumber());
  return (
    own.find((cell) => cell.cause) ??
    own.find((cell) => cell.verdict && cell.paired && !cell.isBaseline) ??
    own.find((cell) => cell.status === "ok") ??
    own[0]
  );
}

/* Columns that are shown in the heading or in the line below the facts instead. */
const APART = ["implementation", "subject", "mesh", "batch", "status", "again"];

GROUPS.cell = (target) => {
  const cell = currentCell();
  if (!cell) return null;
  const { facts, place } = cell.of;
  const status = element("b", `${formatted(cell.status, "status")}: `);
  const other = opponentOf(cell);
  const pair = { a: cell.full, b: other?.full };
  const beside = other ? linkTo("compare", pair, `compare with ${other.name}`) : "";
  const again = element("code.whole", cell.again);
  const trace = cell.traced
    ? [traceLink(cell), ` in TensorBoard (${DATA.serving}) \u00b7 `]
    : [];
  return [
    element("h3", { tabindex: "-1" }, cell.full),
    cell.status === "ok" ? "" : element("p.reason", status, cell.reason),
    cell.traced?.why && element("p", cell.traced.why),
    element("dl.facts", ...factsOf(cell)),
    element("p", ...trace, "measure again: ", again, " ", beside),
    distribution(cell, Math.min(420, widthOf(target) - 80)),
    ...TABLES.flatMap((table) => tableOf(cell, table)),
    facts.length && element("h4", `Its block, ${place}`),
    facts.length && element("ul.remarks", ...facts.map((text) => element("li", text))),
  ];
};

/* Every known value of a cell's row of the table of all cells. */
function factsOf(cell) {
  return DATA.cells.columns
    .filter(({ key }) => known(cell[key]) && !APART.includes(key))
    .map(({ key, title, note, format }) => {
      const detail = cell.detail[key];
      const text = formatted(cell[key], format);
      const name = element("dt", note ? `${title}, ${note}` : title);
      return element("div", name, element("dd", detail ? `${text} (${detail})` : text));
    });
}

/* The rows of another table about a cell. */
function tableOf(cell, table) {
  // They are shown below their cell, so they need no link to it.
  const own = table.rows.filter((row) => row.cell === cell.cell);
  const rows = own.map((row) => ({ ...row, cell: null }));
  if (!rows.length) return [];
  const title = `${table.title}, ${cell.full}`;
  return [element("h4", table.title), makeTable({ ...table, title, rows })];
}

/* The rounds of a cell beside its baseline's; null for a cell without a time. */
function distribution(cell, width) {
  const { samples, launch, baseline } = cell.of;
  const own = samples[cell.arm];
  if (!own || cell.status !== "ok") return null;
  const other = cell.isBaseline ? [] : (samples[baseline] ?? []);
  const arms = [
    [cell.name, own, colourOf(cell.arm)],
    [`${IMPLEMENTATIONS[baseline]} (baseline)`, other, "var(--ink)"],
    ["its second copy", samples.twin ?? [], "var(--muted)"],
  ].filter(([, values]) => values.length);
  // Number only the workers that measured the cell.
  const workers = unique(launch.filter((_, place) => known(own[place])));
  const launches = launch.map((worker) => workers.indexOf(worker) + 1);
  const rows = arms.flatMap(([name, values]) =>
    values.flatMap((value, place) =>
      known(value) && launches[place]
        ? [{ name, round: place + 1, launch: launches[place], value: value / 1e6 }]
        : [],
    ),
  );
  const looks = { names: arms.map(([name]) => name), colours: arms.map(([, , colour]) => colour) };
  return figure("distribution", { rows, width, ...looks }, {
    title: `Distribution of step times, ${cell.full}`,
    name: "samples",
    columns: [
      { key: "name", title: "Arm", filter: true },
      { ...number("launch", "Launch"), filter: true },
      number("round", "Round"),
      number("value", "Step time", "s"),
    ],
  });
}
