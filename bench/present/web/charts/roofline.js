// What compiled steps achieve, below the measured roofs of the devices.

GROUPS.roofline = (target) => {
  const cells = byPlace(selection()).filter(
    (cell) => known(cell.device_flops) && cell.intensity > 0 && known(cell.of.matmul),
  );
  if (!cells.length) return null;
  const rows = cells.map((cell) => {
    const { devices, matmul, bandwidth } = cell.of;
    const place = `${devices} device${devices > 1 ? "s" : ""}`;
    return rowOf(cell, "roofline", { place, matmul, bandwidth });
  });
  const sizes = panelSizes(target, rows, { each: 260, labels: 60, most: 360 });
  return [figure("roofline", { rows, area: 60, ...sizes })];
};
