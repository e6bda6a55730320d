// Loss curves, and their differences from the reference's.

const EARLY = 40; // Correct curves agree to rounding for so long: see bench/analyse/loss_curves.py.
const EQUAL = "equal"; // Label of differences of 0, which a logarithmic axis cannot show.
// The reference is a wide line beneath the curves; in other arithmetic it is dashed.
const REFERENCES = DATA.specs.losses.values.references;

/* The vertical axis, and the position of a difference of 0: a logarithmic axis is extended below
   the smallest positive value, where zeros are drawn. */
function lossAxis(values, { title, format, log }) {
  const y = { field: "y", type: "quantitative" };
  if (!log) return { y: { ...y, scale: { zero: false }, axis: { title, format, tickCount: 5 } } };
  const [low, high] = padded(values.filter((value) => value > 0), 0.05);
  const floor = low / (high / low) ** 0.1;
  const equal = values.includes(0);
  const domain = [equal ? floor / (high / low) ** 0.03 : low, high];
  const ticks = logTicks([low, high]);
  const labelExpr = `datum.value < ${low} ? "${EQUAL}" : format(datum.value, "${format}")`;
  const axis = equal ? { values: [floor, ...ticks], labelExpr } : { values: ticks };
  const scale = { type: "log", domain, nice: false };
  return { y: { ...y, scale, axis: { title, format, ...axis } }, floor: equal ? floor : 0 };
}

/* Values of a specification: losses, or their differences. rows: {name, place, x, y, last, cell},
   without `cell` for the references; lines: {place, y}, dashed. */
function lossesOf(rows, { columns, width, axis, lines = [] }) {
  const ofCells = rows.filter((row) => known(row.cell));
  const others = new Set(rows.filter((row) => !known(row.cell)).map(({ name }) => name));
  const guides = REFERENCES.filter((name) => others.has(name));
  const { y, floor } = lossAxis([...rows, ...lines].map((row) => row.y), axis);
  const symbols = { symbolType: "stroke", symbolStrokeColor: "var(--muted)", labelLimit: 0 };
  const data = [
    ...rows.map((row) => (floor && row.y === 0 ? { ...row, y: floor } : row)),
    ...lines.map((row) => ({ ...row, line: true })),
  ];
  return {
    ...{ rows: data, columns, width, y, ...looksOf(ofCells) }, // Only references are dashed here.
    referenceLegend: guides.length ? { values: guides, title: null, ...symbols } : null,
    places: unique(data.map((row) => row.place)),
    // Set explicitly, because all differences may be missing.
    ...{ first: 0, last: Math.max(...rows.map((row) => row.x)) },
  };
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
  const [shown, note] = panelled(every, "losses");
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
  const sizes = panelSizes(target, rows, { each: 300, labels: 40, most: 420 });
  const { places } = sizes;
  const { of, steps, tolerance } = shown[0];
  const thinned = steps.length < of ? ` The chart shows ${steps.length} of ${of} steps.` : "";
  const { note: caption, panels, remarks } = CHARTS.losses;
  const draw = (key, caption, text, spec) => {
    const own = rows.filter((row) => known(row[key]));
    const points = own.map((row) => ({ ...row, y: row[key] }));
    return figure("losses", lossesOf(points, { ...sizes, width: sizes.width - 50, ...spec }), {
      title: panels[key],
      caption: caption + thinned,
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
  const ranges = [["", "all"], ["early", `the first ${EARLY}`]];
  const positive = rows.every((row) => !known(row.loss) || row.loss > 0);
  const log = chosen("loss") !== "linear" && positive;
  const parted = shown.filter((curve) => known(curve.cell) && curve.apart.some((apart) => apart > tolerance));
  const compared = shown.filter((curve) => known(curve.cell));
  const most = Math.max(0, ...compared.flatMap((curve) => curve.apart.filter(known)));
  const charts = [
    choices(selector("Steps", "steps", ranges, "losses"), selector("Loss", "loss", AXES, "losses")),
    draw("loss", caption, "significant", { axis: { title: "loss", format: "~g", log } }),
    draw("apart", remarks.apart, "scientific", {
      axis: { title: "relative difference", format: ".0e", log: true },
      lines: places.map((place) => ({ place, y: tolerance })),
    }),
    note,
  ].filter(Boolean);
  if (parted.length || compared.some(({ apart }) => !known(apart.at(-1)))) return charts;
  const agree =
    `All curves agree with the reference over ${of} steps: they differ by at most ` +
    `${scientific(most)}, and the gate allows ${scientific(tolerance)}.`;
  return [nothing(agree), element("details", element("summary", "The curves"), ...charts)];
};
