// Figures along the global batch.

function batches(target) {
  const cells = byPlace(selection(["mesh"])).filter((cell) => cell.status === "ok");
  const on = (mesh) => cells.filter((cell) => cell.of.mesh === mesh);
  const meshes = unique(cells.map((cell) => cell.of.mesh)).filter(
    (mesh) => unique(on(mesh).map((cell) => cell.of.batch)).length > 1,
  );
  if (!meshes.length)
    return [nothing("A curve over batch sizes needs at least two of them on one mesh.")];
  const mesh = meshes.includes(chosen("along")) ? chosen("along") : meshes[0];
  const draw = (key, title, figure, more) =>
    linesFigure({
      title,
      of: mesh,
      name: `batches-${key}`,
      rows: pointsOf(on(mesh), (cell) => cell.of.batch, figure),
      xTitle: "global batch",
      width: widthOf(target),
      logX: true,
      ...more,
    });
  return [
    choices(
      selector(
        "Along",
        "along",
        meshes.map((each) => [each, each]),
        mesh,
        "batches",
      ),
    ),
    element(
      "div",
      { class: "panels" },
      draw("rate", `Throughput, ${on(mesh)[0].unit} a second`, rateOf, {
        axis: { format: "~s" },
        log: true,
        text: "si",
      }),
      draw("memory", "Memory a device, as planned", memoryOf, {
        axis: bytesAxis(mostMemory(cells)),
        text: "bytes",
      }),
    ),
  ];
}
