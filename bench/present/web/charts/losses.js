// Loss curves, and how far they are from the reference's.

const EARLY = 40; // Steps in which right curves agree to rounding: see bench/analyse/loss_curves.py.

/* Loss curves, or how far they are apart. rows: {name, place, x, y, last, cell}, without `cell` for
   what is no implementation's; lines: {place, y}, dashed. */
function lossChart(rows, { columns, width, axisTitle, format, log, lines = [] }) {
  const names = namesIn(rows.filter((row) => known(row.cell)));
  const others = new Set(rows.filter((row) => !known(row.cell)).map((row) => row.name));
  const guides = [...REFERENCES.keys()].filter((name) => others.has(name));
  const [low, high] = padded(
    [...rows, ...lines].map((row) => row.y).filter((value) => known(value) && value > 0),
    0.05,
  );
  const floor = low / (high / low) ** 0.1;
  const equal = log && rows.some((row) => row.y === 0);
  const domain = [equal ? floor / (high / low) ** 0.03 : low, high];
  const ticks = logTicks([low, high]);
  const x = {
    field: "x",
    type: "quantitative",
    // Named, as there may be no difference at all.
    scale: { domain: [0, Math.max(...rows.map((row) => row.x))], nice: false },
    axis: { title: "step", grid: false },
  };
  const y = {
    field: "y",
    type: "quantitative",
    scale: log ? { type: "log", domain, nice: false } : { zero: false },
    axis: {
      title: axisTitle,
      format,
      ...(log ? { values: ticks } : { tickCount: 5 }),
      ...(equal
        ? {
            values: [floor, ...ticks],
            labelExpr: `datum.value < ${low} ? "${EQUAL}" : format(datum.value, "${format}")`,
          }
        : {}),
    },
  };
  const legend = guides.length
    ? {
        values: guides,
        title: null,
        symbolType: "stroke",
        symbolStrokeColor: "var(--muted)",
        labelLimit: 0,
      }
    : null;
  const ofReference = (property) => ({
    field: "name",
    type: "ordinal",
    scale: {
      type: "ordinal",
      domain: [...REFERENCES.keys()],
      range: [...REFERENCES.values()].map((look) => look[property]),
    },
    legend,
  });
  const line = { type: "line", invalid: "break-paths-show-path-domains" };
  return {
    params: [FOCUS],
    data: {
      values: [
        ...rows.map((row) => (equal && row.y === 0 ? { ...row, y: floor } : row)),
        ...lines.map((row) => ({ ...row, line: true })),
      ],
    },
    facet: panelsByPlace(rows),
    columns,
    spec: {
      width,
      height: 220,
      layer: [
        {
          transform: [{ filter: "datum.line" }],
          mark: { type: "rule", color: "var(--muted)", strokeDash: DASHED },
          encoding: { y },
        },
        {
          transform: [{ filter: "!datum.line && !isValid(datum.cell)" }],
          mark: { ...line, color: "var(--muted)" },
          encoding: {
            x,
            y,
            strokeDash: ofReference("strokeDash"),
            strokeWidth: ofReference("strokeWidth"),
            opacity: ofReference("opacity"),
          },
        },
        {
          transform: [{ filter: "isValid(datum.cell)" }],
          mark: { ...line, strokeWidth: 1.4 },
          encoding: { x, y, color: byColour(names) },
        },
        {
          transform: [{ filter: "isValid(datum.cell) && datum.last" }],
          mark: { type: "point", filled: true, opacity: 1 },
          encoding: { x, y, color: byColour(names), shape: byShape(names), size: focused(190, 45) },
        },
      ],
    },
    resolve: { axis: { x: "independent" } },
    spacing: 18,
  };
}

function losses(target) {
  const off = hidden();
  const blocks = new Set(selection().map((cell) => cell.block));
  const trained = DATA.losses.filter((one) => blocks.has(one.block));
  if (!trained.length)
    return [
      nothing("Nothing was trained here: --train-steps compares loss curves over many steps."),
    ];
  const early = chosen("steps") === "early";
  const logarithmic = chosen("loss") !== "linear";
  const every = trained.flatMap((one) =>
    one.curves
      .filter((curve) => !off.has(curve.name))
      .map((curve) => ({ ...curve, ...one, place: BLOCKS[one.block].place })),
  );
  const [shown, note] = panelled(every, "losses", "blocks", (curve) => curve.block);
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
  const columns = columnsFor(
    target,
    300,
    rows.map((row) => row.place),
    40,
  );
  const width = panelWidth(target, columns, 40, 420) - 50;
  const { of, steps, tolerance } = shown[0];
  const thinned = steps.length < of ? ` Of ${of} steps, ${steps.length} are drawn.` : "";
  const places = unique(rows.map((row) => row.place));
  const draw = (key, { title, caption, text, ...spec }) => {
    const own = rows.filter((row) => known(row[key]));
    return figure({
      title,
      caption,
      spec: lossChart(
        own.map((row) => ({ ...row, y: row[key] })),
        { columns, width, ...spec },
      ),
      table: () => ({
        name: `losses-${key}`,
        rows: own,
        columns: [
          CELL,
          { key: "place", title: "Block", filter: true },
          number("x", "Step"),
          number(key, title, text),
        ],
      }),
    });
  };
  return [
    choices(
      selector(
        "Steps",
        "steps",
        [
          ["", "all"],
          ["early", `the first ${EARLY}`],
        ],
        chosen("steps"),
        "losses",
      ),
      selector(
        "Loss",
        "loss",
        [
          ["", "logarithmic"],
          ["linear", "linear"],
        ],
        chosen("loss"),
        "losses",
      ),
    ),
    draw("loss", {
      title: "Loss",
      caption:
        "Every implementation from the same parameters on the same data, over the reference: the " +
        `whole batch on one device.${thinned}`,
      text: "significant",
      axisTitle: "loss",
      format: "~g",
      log: logarithmic && rows.every((row) => !known(row.loss) || row.loss > 0),
    }),
    draw("apart", {
      title: "Largest difference from the reference so far",
      caption:
        "Relative to the reference's loss of the same step; at the bottom, no difference at all " +
        `(${EQUAL}). Grey lines are the reference itself ` +
        "with its batch in parts, and in float64: as far as rounding leads, which every step " +
        `amplifies. The dashed line is what the gate allows its few steps.${thinned}`,
      text: "scientific",
      axisTitle: "relative difference",
      format: ".0e",
      log: true,
      lines: places.map((place) => ({ place, y: tolerance })),
    }),
    note,
  ].filter(Boolean);
}
