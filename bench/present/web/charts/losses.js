// Loss curves, and their differences from the reference's.

const EARLY = 40; // Correct curves agree to rounding for so long: see bench/analyse/loss_curves.py.
const EQUAL = "equal"; // Label of differences of 0, which a logarithmic axis cannot show.
// The reference is a wide line beneath the curves; in other arithmetic it is dashed.
const REFERENCES = new Map([
  ["whole batch", { strokeDash: [1, 0], strokeWidth: 5, opacity: 0.35 }],
  ["whole batch in parts", { strokeDash: DOTTED, strokeWidth: 1.4, opacity: 1 }],
  ["whole batch in float64", { strokeDash: [8, 3], strokeWidth: 1.4, opacity: 1 }],
]);

/* The vertical axis, and the position of a difference of 0: a logarithmic axis is extended below
   the smallest positive value, where zeros are drawn. */
function lossAxis(values, { title, format, log }) {
  const positive = values.filter((value) => value > 0);
  const [low, high] = padded(positive, 0.05);
  if (!log)
    return { y: numeric("y", { scale: { zero: false }, axis: { title, format, tickCount: 5 } }) };
  const floor = low / (high / low) ** 0.1;
  const equal = values.includes(0);
  const domain = [equal ? floor / (high / low) ** 0.03 : low, high];
  const ticks = logTicks([low, high]);
  const labelExpr = `datum.value < ${low} ? "${EQUAL}" : format(datum.value, "${format}")`;
  const axis = equal ? { values: [floor, ...ticks], labelExpr } : { values: ticks };
  const scale = { type: "log", domain, nice: false };
  return { y: numeric("y", { scale, axis: { title, format, ...axis } }), floor: equal ? floor : 0 };
}

/* Losses, or their differences. rows: {name, place, x, y, last, cell}, without `cell` for the
   references; lines: {place, y}, dashed. */
function lossChart(rows, { columns, width, axis, lines = [] }) {
  const others = new Set(rows.filter((row) => !known(row.cell)).map((row) => row.name));
  const guides = [...REFERENCES.keys()].filter((name) => others.has(name));
  const values = [...rows, ...lines].map((row) => row.y);
  const { y, floor } = lossAxis(values, axis);
  const symbols = { symbolType: "stroke", symbolStrokeColor: "var(--muted)", labelLimit: 0 };
  const ofReference = (property) => ({
    field: "name",
    type: "ordinal",
    scale: {
      type: "ordinal",
      domain: [...REFERENCES.keys()],
      range: [...REFERENCES.values()].map((look) => look[property]),
    },
    legend: guides.length ? { values: guides, title: null, ...symbols } : null,
  });
  const properties = ["strokeDash", "strokeWidth", "opacity"];
  const data = [
    ...rows.map((row) => (floor && row.y === 0 ? { ...row, y: floor } : row)),
    ...lines.map((row) => ({ ...row, line: true })),
  ];
  return specOf("losses", {
    ...{ rows: data, columns, width, y, xTitle: CHARTS.losses.x },
    ...looksOf(rows.filter((row) => known(row.cell))), // Here, only references are dashed.
    ...Object.fromEntries(properties.map((property) => [property, ofReference(property)])),
    places: unique(data.map((row) => row.place)),
    // Set explicitly, because all differences may be missing.
    ...{ first: 0, last: Math.max(...rows.map((row) => row.x)) },
  });
}

GROUPS.losses = (target) => {
  const off = hidden();
  const blocks = new Set(selection().map((cell) => cell.block));
  const trained = DATA.losses.filter((one) => blocks.has(one.block));
  if (!trained.length)
    return [nothing("Nothing was trained here: --train-steps compares loss curves over many steps.")];
  const early = chosen("steps") === "early";
  const every = trained.flatMap((one) =>
    one.curves
      .filter((curve) => !off.has(curve.name))
      .map((curve) => ({ ...curve, ...one, place: BLOCKS[one.block].place })),
  );
  const [shown, note] = panelled(every, "losses", "blocks", blockOf);
  const rows = shown.flatMap((curve) =>
    curve.steps
      .map((x, number) => ({
        cell: curve.cell,
        name: curve.name,
        place: curve.place,
        x,
        loss: curve.yardstick ? null : curve.loss[number],
        apart: known(curve.cell) || curve.yardstick ? curve.apart[number] : null,
      }))
      .filter((row) => (known(row.loss) || known(row.apart)) && (!early || row.x <= EARLY))
      .map((row, number, all) => ({ ...row, last: number === all.length - 1 })),
  );
  const places = unique(rows.map((row) => row.place));
  const { columns, width } = panelSizes(target, places, { each: 300, labels: 40, most: 420 });
  const { of, steps, tolerance } = shown[0];
  const thinned = steps.length < of ? ` The chart shows ${steps.length} of ${of} steps.` : "";
  const { note: caption, panels, remarks } = CHARTS.losses;
  const draw = (key, caption, text, spec) => {
    const own = rows.filter((row) => known(row[key]));
    const points = own.map((row) => ({ ...row, y: row[key] }));
    return figure({
      title: panels[key],
      caption: caption + thinned,
      spec: lossChart(points, { columns, width: width - 50, ...spec }),
      name: `losses-${key}`,
      rows: own,
      columns: [
        CELL,
        { key: "place", title: "Block", filter: true },
        number("x", "Step"),
        number(key, panels[key], text),
      ],
    });
  };
  const ranges = { "": "all", early: `the first ${EARLY}` };
  const positive = rows.every((row) => !known(row.loss) || row.loss > 0);
  const log = chosen("loss") !== "linear" && positive;
  const parted = shown.filter((curve) => known(curve.cell) && curve.apart.some((apart) => apart > tolerance));
  const most = Math.max(0, ...rows.filter((row) => known(row.cell)).map((row) => row.apart ?? 0));
  const charts = [
    choices(selector("Steps", "steps", ranges, "losses"), selector("Loss", "loss", AXES, "losses")),
    draw("loss", caption, "significant", { axis: { title: "loss", format: "~g", log } }),
    draw("apart", remarks.apart, "scientific", {
      axis: { title: "relative difference", format: ".0e", log: true },
      lines: places.map((place) => ({ place, y: tolerance })),
    }),
    note,
  ].filter(Boolean);
  if (parted.length) return charts;
  const agree =
    `All curves agree with the reference over ${of} steps: they differ by at most ` +
    `${scientific(most)}, and the gate allows ${scientific(tolerance)}.`;
  return [nothing(agree), element("details", {}, element("summary", {}, "The curves"), ...charts)];
};
