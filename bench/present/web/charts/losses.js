// Loss curves, and their differences from the reference's.

// The reference is a wide line beneath the curves; in other arithmetic it is dashed.
const REFERENCES = DATA.specs.losses.values.references;
const [REFERENCE, YARDSTICK] = REFERENCES;

/* The vertical axis. A logarithmic one is extended below the smallest positive value if there are
   zeros, and clamps them to its end, whose label is `equal`. */
function lossAxis(values, { title, format, log }) {
  if (!log) {
    // The layer of the tolerance has no rows here, so Vega would warn about their extent.
    const yScale = { domain: [Math.min(...values), Math.max(...values)], nice: true };
    return { yScale, yAxis: { title, format, tickCount: 5 } };
  }
  const [low, high] = padded(values.filter((value) => value > 0), 0.05);
  const end = values.includes(0) ? [low / (high / low) ** 0.1] : [];
  const labelExpr = `datum.value < ${low} ? "equal" : format(datum.value, "${format}")`;
  const domain = [end[0] ?? low, high];
  const yScale = { type: "log", domain, nice: false, clamp: true };
  return { yScale, yAxis: { title, values: [...end, ...logTicks([low, high])], labelExpr } };
}

/* Values of a specification: losses, or their differences. rows: {name, place, x, y, last, cell},
   without `cell` for the references; lines: {place, y}, dashed. */
function lossesOf(rows, axis, lines = []) {
  const guides = REFERENCES.filter((name) => rows.some((row) => row.name === name));
  const symbols = { symbolType: "stroke", symbolStrokeColor: "var(--muted)", labelLimit: 0 };
  return {
    rows: [...rows, ...lines.map((row) => ({ ...row, line: true }))],
    ...lossAxis([...rows, ...lines].map((row) => row.y), axis),
    referenceLegend: guides.length ? { values: guides, title: null, ...symbols } : null,
    // Set explicitly, because all differences may be missing.
    ...{ first: 0, last: Math.max(...rows.map((row) => row.x)) },
  };
}

/* The known values of curves, by step; `last` marks the end of each. */
const pointsOf = (curves, key) =>
  curves.flatMap(({ cell, name, place, steps, [key]: values }) =>
    values
      .map((y, number) => ({ cell, name, place, x: steps[number], y, [key]: y }))
      .filter(({ y }) => known(y))
      .map((point, number, all) => ({ ...point, last: number === all.length - 1 })),
  );

GROUPS.losses = (target) => {
  const off = hidden();
  const blocks = new Set(selection().map((cell) => cell.block));
  const trained = DATA.losses.filter((one) => blocks.has(one.block));
  if (!trained.length) return null;
  const every = trained.flatMap((one) =>
    one.curves
      .filter((curve) => !off.has(curve.name))
      .map((curve) => ({ ...curve, ...one, place: BLOCKS[one.block].place })),
  );
  const [shown, note] = panelled(every, "losses");
  const losses = pointsOf(shown.filter(({ name }) => name !== YARDSTICK), "loss");
  const differences = pointsOf(shown.filter(({ name }) => name !== REFERENCE), "apart");
  const sizes = panelSizes(target, shown, { each: 300, labels: 40, most: 420 });
  const { of, steps, tolerance } = shown[0];
  const thinned = steps.length < of ? ` The chart shows ${steps.length} of ${of} steps.` : "";
  const { note: caption, panels, remarks } = CHARTS.losses;
  const draw = (key, rows, caption, text, axis, lines) => {
    const given = { ...sizes, width: sizes.width - 50, ...lossesOf(rows, axis, lines) };
    return figure("losses", given, {
      ...{ title: panels[key], caption: caption + thinned, name: `losses-${key}`, rows },
      columns: [
        CELL,
        { key: "place", title: "Block", filter: true },
        number("x", "Step"),
        number(key, panels[key], text),
      ],
    });
  };
  const inLoss = { title: "loss", format: "~g", log: losses.every(({ y }) => y > 0) };
  const relative = { title: "relative difference", format: ".0e", log: true };
  const tolerances = sizes.places.map((place) => ({ place, y: tolerance }));
  const charts = [
    draw("loss", losses, caption, "significant", inLoss),
    draw("apart", differences, remarks.apart, "scientific", relative, tolerances),
    note,
  ].filter(Boolean);
  const compared = shown.filter(({ cell }) => known(cell));
  const farthest = Math.max(0, ...compared.map(({ apart }) => apart.at(-1) ?? Infinity));
  if (farthest > tolerance) return charts;
  const agree =
    `All curves agree with the reference over ${of} steps: they differ by at most ` +
    `${scientific(farthest)}, and the gate allows ${scientific(tolerance)}.`;
  const open = target.querySelector(":scope > details[open]") !== null; // before it was drawn again
  return [nothing(agree), element("details", { open }, element("summary", "The curves"), ...charts)];
};
