// One field per cell: meshes by batches, with a panel per implementation. One batch has no chart of
// its own, because the matrix of the first screen shows it.

/* Columns of cells that a heatmap may show, and which of their values are better. */
const BETTER = {
  ...{ ratio: "ratio", step_s: "less", units_per_s: "more", memory_bytes: "less" },
  ...{ compile_total_s: "less", wire_bytes: "less", mfu: "more" },
};
const FIELD = 62;

/* Names by the median over blocks of their times over the fastest's, smallest first. */
function typicalOrder(cells) {
  const fastest = new Map();
  for (const { block, step_s: step } of cells)
    fastest.set(block, Math.min(step, fastest.get(block) ?? step));
  const typical = [...Map.groupBy(cells, (cell) => cell.name)].map(([name, own]) => {
    const behind = own.map((cell) => cell.step_s / fastest.get(cell.block)).sort((a, b) => a - b);
    return [name, behind[Math.floor(own.length / 2)]];
  });
  return typical.sort(([, a], [, b]) => a - b).map(([name]) => name);
}

/* A figure's position from -1 (good) to 1: ratios relative to 1, others relative to one another. */
function shading(values, better) {
  if (better === "ratio") return (value) => Math.log(value) / Math.log(DATA.specs.common.farthest);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const span = Math.log(most / least) || 1;
  return (value) => -Math.log(better === "less" ? most / value : value / least) / span;
}

GROUPS.heatmap = (target) => {
  const all = byPlace(selection(["mesh"]));
  if (unique(all.map((cell) => cell.of.batch)).length === 1) {
    const matrix = element("a", { href: "#behind" }, "Time behind the fastest");
    const reason = "All meshes have one batch size here";
    if (!byId("behind")) return [nothing(`${reason}.`)];
    return [nothing(`${reason}, so the matrix shows them: `, matrix, ".")];
  }
  const names = typicalOrder(all.filter((cell) => cell.status === "ok"));
  const never = unique(all.map((cell) => cell.name)).filter((name) => !names.includes(name));
  const byName = names.flatMap((name) => all.filter((cell) => cell.name === name));
  const [cells, note] = panelled(byName, "heatmap", "implementations", (cell) => cell.name);
  const metrics = DATA.cells.columns.filter(
    ({ key }) =>
      BETTER[key] &&
      cells.some((cell) => known(cell[key]) && !(key === "ratio" && cell.isBaseline)),
  );
  if (!metrics.length) return [nothing("No cell has a figure.")];
  const metric = metrics.find(({ key }) => key === chosen("metric")) ?? metrics[0];
  const { key, title, note: qualifier, format } = metric;
  const shade = shading(cells.map((cell) => cell[key]).filter((found) => found > 0), BETTER[key]);
  const rows = cells.map((cell) => {
    const { name: panel, status, [key]: found, of: { mesh, batch } } = cell;
    const share = found > 0 ? shade(found) : null;
    const label = known(found) ? formatted(found, format) : DATA.statuses[status].short;
    const field = { panel, line: batch, mesh, batch, status, figure: found, share, label };
    return rowOf(cell, "heatmap", field);
  });
  const meshes = unique(byPlace(cells).map((cell) => cell.of.mesh));
  const fitting = Math.floor(widthOf(target) / (Math.max(meshes.length * FIELD, 80) + 70));
  const columns = Math.max(1, Math.min(4, fitting));
  const panels = unique(cells.map((cell) => cell.name));
  const lines = ascending(rows.map((row) => row.batch));
  const given = { rows, meshes, columns, panels, lines, yTitle: CHARTS.heatmap.x };
  const chart = figure("heatmap", given, {
    title: `Heatmap: ${title}`,
    caption: CHARTS.heatmap.remarks[BETTER[key]] ?? CHARTS.heatmap.note,
    name: `heatmap-${key}`,
    columns: [
      CELL,
      { key: "mesh", title: "Mesh", filter: true },
      { ...number("batch", "Batch"), filter: true },
      number("figure", title, format, qualifier),
      { key: "status", title: "Status", format: "status", filter: true },
    ],
  });
  const options = metrics.map((each) => [each.key, each.title]);
  return [
    choices(selector("Figure", "metric", options, "heatmap", key)),
    chart,
    note,
    never.length ? nothing(`Without any time here: ${never.join(", ")}.`) : "",
  ];
};
