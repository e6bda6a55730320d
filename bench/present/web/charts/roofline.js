// What compiled steps achieve, below the measured roofs of the devices.

GROUPS.roofline = (target) => {
  const cells = byPlace(selection()).filter(
    (cell) => known(cell.device_flops) && cell.intensity > 0 && known(cell.of.matmul),
  );
  if (!cells.length)
    return [nothing("No cell has both measured ceilings and the compiler's count of its work.")];
  const panelOf = ({ of }) => `${of.devices} device${of.devices > 1 ? "s" : ""}`;
  const rows = cells.map((cell) => rowOf(cell, "roofline", { place: panelOf(cell) }));
  const intensities = rows.map((row) => row.intensity);
  const blocks = new Map(cells.map((cell) => [panelOf(cell), cell.of]));
  const roofs = [...blocks].flatMap(([place, { matmul, bandwidth }]) => {
    const ridge = matmul / bandwidth;
    const ends = [Math.min(...intensities, ridge) / 2, ridge, Math.max(...intensities, ridge) * 2];
    return ends.map((intensity) => {
      const flops = Math.min(matmul, intensity * bandwidth);
      return { isRoof: true, place, intensity, device_flops: flops };
    });
  });
  const places = [...blocks.keys()];
  const sizes = panelSizes(target, places, { each: 260, labels: 60, most: 360 });
  const all = [...roofs, ...rows];
  const along = (field, share) => padded(all.map((row) => row[field]), share);
  const [xDomain, yDomain] = [along("intensity", 0.02), along("device_flops", 0.06)];
  const ticks = { xTicks: logTicks(xDomain), yTicks: logTicks(yDomain) };
  const given = { rows: all, places, area: 60, xDomain, yDomain, ...ticks, ...sizes };
  return [figure("roofline", { ...given, ...looksOf(rows) }, { rows })];
};
