// What compiled steps compute, below measured roofs.

/* rows: {name, panel, x, y, cell}, and roofs with `roof: true`, all in FLOP and FLOP/s a device. */
function rooflineChart(rows, { columns, width }) {
  const names = namesIn(rows);
  const along = (field, title, share) => {
    const domain = padded(
      rows.map((row) => row[field]),
      share,
    );
    return {
      field,
      type: "quantitative",
      scale: { type: "log", domain, nice: false },
      axis: { title, format: "~s", values: logTicks(domain) },
    };
  };
  const x = along("x", "intensity: compiled FLOP a byte accessed", 0.02);
  const y = along("y", "compiled FLOP/s a device", 0.06);
  return {
    params: [FOCUS],
    data: { values: rows },
    facet: {
      field: "panel",
      type: "nominal",
      title: null,
      sort: [...new Set(rows.map((row) => row.panel))],
    },
    columns,
    spec: {
      width,
      height: 240,
      layer: [
        {
          transform: [{ filter: "datum.roof" }],
          mark: { type: "line", color: "var(--ink)", strokeWidth: 1.3 },
          encoding: { x, y },
        },
        {
          transform: [{ filter: "!datum.roof" }],
          mark: { type: "point", filled: true, opacity: 0.9 },
          encoding: { x, y, color: byColour(names), shape: byShape(names), size: focused(220, 60) },
        },
      ],
    },
    spacing: 18,
  };
}

function roofline(target) {
  const cells = byPlace(selection()).filter(
    (cell) => known(cell.device_flops) && cell.intensity > 0 && known(cell.of.matmul),
  );
  if (!cells.length) {
    return [nothing("No cell has both measured ceilings and the compiler's count of its work.")];
  }
  const panelOf = (cell) => `${cell.of.devices} device${cell.of.devices > 1 ? "s" : ""}`;
  const rows = cells.map((cell) => ({
    cell: cell.number,
    name: cell.name,
    panel: panelOf(cell),
    x: cell.intensity,
    y: cell.device_flops,
    share: cell.roof,
  }));
  const intensities = rows.map((row) => row.x);
  const blocks = new Map(cells.map((cell) => [panelOf(cell), cell.of]));
  const roofs = [...blocks].flatMap(([panel, { matmul, bandwidth }]) => {
    const ridge = matmul / bandwidth;
    const ends = [Math.min(...intensities, ridge) / 2, ridge, Math.max(...intensities, ridge) * 2];
    return ends.map((x) => ({ roof: true, panel, x, y: Math.min(matmul, x * bandwidth) }));
  });
  const columns = columnsFor(
    target,
    260,
    rows.map((row) => row.panel),
    60,
  );
  const width = panelWidth(target, columns, 60, 360);
  const chart = figure({
    title: "Roofline",
    caption:
      "The roof is what a device reached in this run with nothing else to do, while all of the " +
      "mesh worked: matrix products (flat) and memory (slanted). FLOP and bytes are the " +
      "compiler's count, in which every operation reads its operands from memory: a cell above " +
      "the slanted roof has them in caches, one above the flat roof had a calmer moment than the " +
      "ceiling.",
    spec: rooflineChart([...roofs, ...rows], { columns, width }),
    table: () => ({
      name: "roofline",
      rows,
      columns: [
        CELL,
        number("x", "Intensity", "significant", "FLOP a byte"),
        number("y", "Achieved", "FLOP/s", "a device"),
        number("share", "Of the roof", "percent"),
      ],
    }),
  });
  return [chart];
}
