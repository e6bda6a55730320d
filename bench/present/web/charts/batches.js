// Throughput and memory along the global batch.

GROUPS.batches = (target) => {
  const cells = byPlace(selection(["mesh"])).filter((cell) => cell.status === "ok");
  const on = (mesh) => cells.filter((cell) => cell.of.mesh === mesh);
  const meshes = unique(cells.map((cell) => cell.of.mesh)).filter(
    (mesh) => unique(on(mesh).map((cell) => cell.of.batch)).length > 1,
  );
  if (!meshes.length) return null;
  const mesh = meshes.includes(chosen("along")) ? chosen("along") : meshes[0];
  const x = (cell) => cell.of.batch;
  const xTitle = CHARTS.batches.x;
  const draw = curvesOf(on(mesh), { of: mesh, name: "batches", x, xTitle, target });
  return [
    choices(selector("Along", "along", meshes, "batches", mesh)),
    element("div.panels", ...throughputAndMemory(draw, on(mesh))),
  ];
};
