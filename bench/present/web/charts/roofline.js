// What compiled steps achieve, below the measured roofs of the devices.

/* rows: {name, panel, x, y, cell}, and roofs with `roof: true`, all in FLOP and FLOP/s a device. */
function rooflineChart(rows, { columns, width }) {
  const names = namesIn(rows);
  const along = (field, title, share) => {
    const domain = padded(
      rows.map((row) => row[field]),
      share,
    );
    return numeric(field, {
      scale: { type: "log", domain, nice: false },
      axis: { title, format: "~s", values: logTicks(domain) },
    });
  };
  const x = along("x", CHARTS.roofline.x, 0.02);
  const y = along("y", CHARTS.roofline.y, 0.06);
  const layer = [
    {
      transform: [{ filter: "datum.roof" }],
      mark: { type: "line", color: "var(--ink)", strokeWidth: 1.3 },
      encoding: { x, y },
    },
    marksOf(x, y, names, [220, 60], { transform: [{ filter: "!datum.roof" }] }),
  ];
  return panelsBy("panel", rows, columns, { width, height: 240, layer });
}

GROUPS.roofline = (target) => {
  const cells = byPlace(selection()).filter(
    (cell) => known(cell.device_flops) && cell.intensity > 0 && known(cell.of.matmul),
  );
  if (!cells.length)
    return [nothing("No cell has both measured ceilings and the compiler's count of its work.")];
  const panelOf = ({ of }) => `${of.devices} device${of.devices > 1 ? "s" : ""}`;
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
  const sizes = panelSizes(target, [...blocks.keys()], { each: 260, labels: 60, most: 360 });
  const chart = figure({
    title: CHARTS.roofline.title,
    caption: CHARTS.roofline.note,
    spec: rooflineChart([...roofs, ...rows], sizes),
    table: () => ({
      name: "roofline",
      rows,
      columns: [
        CELL,
        number("x", "Intensity", "significant", "FLOP per byte"),
        number("y", "Achieved", "FLOP/s", "per device"),
        number("share", "Of the roof", "percent"),
      ],
    }),
  });
  return [chart];
};
