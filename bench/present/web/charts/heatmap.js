// A field a cell: meshes by batches.

/* What a heatmap can show: title, figure of a cell, its text, and what is better. */
const METRICS = {
  ratio: ["ratio to the baseline", (cell) => cell.ratio, "ratio", "ratio"],
  step: ["step time", (cell) => cell.step_s, "s", "less"],
  rate: ["throughput", (cell) => cell.units_per_s, "si", "more"],
  memory: ["memory a device", (cell) => cell.memory_bytes, "bytes", "less"],
  compiling: ["compile time", (cell) => cell.compile_total_s, "seconds", "less"],
  wire: ["bytes sent a device", (cell) => cell.wire_bytes, "bytes", "less"],
  mfu: ["MFU", (cell) => cell.mfu, "percent", "more"],
};

const MEANING = {
  ratio:
    "Blue is faster than the baseline, orange slower; the strongest colours are 1.5 times and more.",
  less: "The less, the bluer; each step of colour is a ratio.",
  more: "The more, the bluer; each step of colour is a ratio.",
};


const FIELD = { width: 62, height: 26 };

/* rows: {name, mesh, batch, colour, label, status, cell}. */
function heatmapChart(rows, { columns, meshes, batches, names }) {
  const mesh = { field: "mesh", type: "nominal", sort: meshes };
  const batch = { field: "batch", type: "ordinal", sort: batches };
  const plain = { domain: false, ticks: false, labelOverlap: false };
  return {
    params: [FOCUS],
    data: { values: rows },
    facet: { field: "name", type: "nominal", title: null, sort: names },
    columns,
    spec: {
      width: Math.max(meshes.length * FIELD.width, 80),
      height: Math.max(batches.length * FIELD.height, 30),
      layer: [
        {
          mark: { type: "rect", cornerRadius: 2 },
          encoding: {
            x: { ...mesh, axis: { ...plain, title: null, labelAngle: -30, labelLimit: 120 } },
            y: { ...batch, axis: { ...plain, title: "batch" } },
            color: { field: "colour", type: "nominal", scale: null },
            stroke: focused("var(--ink)", "var(--paper)"),
            strokeWidth: focused(2, 1),
          },
        },
        {
          mark: { type: "text", fontSize: 10.5, limit: 58, color: "var(--ink)" },
          encoding: { x: mesh, y: batch, text: { field: "label" } },
        },
      ],
    },
    resolve: { axis: { x: "independent" } },
    spacing: 16,
  };
}

/* From -1 (good) to 1 (bad), by way of 0 (neither), in the colours of the theme. */
function heat(share) {
  const end = share < 0 ? "var(--c0)" : "var(--c1)";
  return `color-mix(in oklab, ${end} ${Math.round(55 * Math.min(Math.abs(share), 1))}%, var(--shade))`;
}

function heatmap(target) {
  const all = byPlace(selection());
  const timed = all.filter((cell) => cell.status === "ok");
  const names = typicalOrder(
    timed.map((cell) => ({ name: cell.name, place: cell.block, step: cell.step_s })),
    (row) => row.step,
  );
  const never = unique(all.map((cell) => cell.name)).filter((name) => !names.includes(name));
  const byName = names.flatMap((name) => all.filter((cell) => cell.name === name));
  const [cells, note] = panelled(byName, "heatmap", "implementations", (cell) => cell.name);
  const metrics = Object.entries(METRICS).filter(([, [, value]]) =>
    cells.some((cell) => known(value(cell)) && !(value === METRICS.ratio[1] && cell.isBaseline)),
  );
  if (!metrics.length) return [nothing("No cell has a figure.")];
  const metric = metrics.find(([key]) => key === chosen("metric"))?.[0] ?? metrics[0][0];
  const [title, value, text, better] = METRICS[metric];
  const shade = shading(
    cells.map(value).filter((found) => found > 0),
    better,
  );
  const rows = cells.map((cell) => {
    const found = value(cell);
    return {
      cell: cell.number,
      name: cell.name,
      mesh: cell.of.mesh,
      batch: cell.of.batch,
      status: cell.status,
      figure: found,
      colour: found > 0 ? heat(shade(found)) : "transparent",
      label: known(found) ? formatted(found, text) : DATA.statuses[cell.status].short,
    };
  });
  const meshes = unique(byPlace(cells).map((cell) => cell.of.mesh));
  const sizes = ascending(rows.map((row) => row.batch));
  const columns = across(target, Math.max(meshes.length * FIELD.width, 80) + 70);
  return [
    choices(
      selector(
        "Figure",
        "metric",
        metrics.map(([key, [name]]) => [key, name]),
        metric,
        "heatmap",
      ),
    ),
    figure({
      title: `Heatmap of ${title}`,
      caption: `A field is a cell: the mesh across, the global batch down. ${MEANING[better]}`,
      spec: heatmapChart(rows, { meshes, batches: sizes, names, columns }),
      table: () => ({
        name: `heatmap-${metric}`,
        rows,
        columns: [
          CELL,
          { key: "mesh", title: "Mesh", filter: true },
          { ...number("batch", "Batch"), filter: true },
          number("figure", title, text),
          { key: "status", title: "Status", format: "status", filter: true },
        ],
      }),
    }),
    note,
    never.length ? nothing(`Without a time everywhere: ${never.join(", ")}.`) : "",
  ];
}

/* How good a figure is, from -1 to 1: ratios against 1, others among those that there are. */
function shading(values, better) {
  if (better === "ratio") return (found) => Math.log(found) / Math.log(FARTHEST);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const span = Math.log(most / least) || 1;
  return (found) =>
    better === "less" ? -Math.log(most / found) / span : -Math.log(found / least) / span;
}
