// What compiled steps achieve, below the measured roofs of the devices.

GROUPS.roofline = (target) => {
  const cells = byPlace(selection()).filter(
    (cell) => known(cell.device_flops) && cell.intensity > 0 && known(cell.of.matmul),
  );
  if (!cells.length)
    return [nothing("No cell has both measured ceilings and the compiler's count of its work.")];
  const panelOf = ({ of }) => `${of.devices} device${of.devices > 1 ? "s" : ""}`;
  const rows = cells.map((cell) => {
    const { intensity: x, device_flops: y, roof: share } = cell;
    return rowOf(cell, { place: panelOf(cell), x, y, share });
  });
  const intensities = rows.map((row) => row.x);
  const blocks = new Map(cells.map((cell) => [panelOf(cell), cell.of]));
  const roofs = [...blocks].flatMap(([place, { matmul, bandwidth }]) => {
    const ridge = matmul / bandwidth;
    const ends = [Math.min(...intensities, ridge) / 2, ridge, Math.max(...intensities, ridge) * 2];
    return ends.map((x) => ({ roof: true, place, x, y: Math.min(matmul, x * bandwidth) }));
  });
  const places = [...blocks.keys()];
  const sizes = panelSizes(target, places, { each: 260, labels: 60, most: 360 });
  const all = [...roofs, ...rows];
  const along = (field, share) => padded(all.map((row) => row[field]), share);
  const [xDomain, yDomain] = [along("x", 0.02), along("y", 0.06)];
  const ticks = { xTicks: logTicks(xDomain), yTicks: logTicks(yDomain) };
  const given = { rows: all, places, area: 60, xDomain, yDomain, ...ticks, ...sizes };
  return [figure("roofline", { ...given, ...looksOf(rows) }, { rows })];
};
