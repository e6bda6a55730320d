// Step time, efficiency, throughput and memory along the devices of a scaling curve.

/* One quantity along devices or batches. rows: {name, x, value, low, high, cell}, with `measured`
   for hollow marks; ideal, communication: pairs of x and value; over: where the shade begins. */
function curveChart(rows, options) {
  const { title, xTitle, axis, log, logX, width, ideal = [], communication = [], over } = options;
  const names = namesIn(rows);
  const xs = ascending(rows.map((row) => row.x));
  const ends = logX ? [xs[0] / BESIDE, xs.at(-1) * BESIDE] : [0, xs.at(-1) * 1.08];
  const x = numeric("x", {
    scale: { domain: ends, nice: false, ...(logX ? { type: "log", base: 2 } : {}) },
    axis: { title: xTitle, values: xs, format: "d", grid: false },
  });
  const all = [
    ...rows.flatMap((row) => [row.low, row.high, row.measured]),
    ...[...ideal, ...communication].map(([, value]) => value),
  ].filter((value) => value > 0);
  const scale = log
    ? { type: "log", domain: padded(all, 0.1), nice: false }
    : { domain: [0, 1.08 * Math.max(...all)], nice: false };
  const ticks = log ? { values: logTicks(scale.domain) } : { tickCount: 5 };
  const y = (field) => numeric(field, { scale, axis: { title: null, ...ticks, ...axis } });
  const shade = {
    data: { values: [{ from: Math.max(over, ends[0]), to: ends[1] }] },
    mark: { type: "rect", color: "var(--shade)" },
    encoding: { x: { ...x, field: "from" }, x2: { field: "to" } },
  };
  const guide = (points, strokeDash, strokeWidth) => ({
    data: { values: points.map(([x, value]) => ({ x, value })) },
    mark: { type: "line", color: "var(--muted)", strokeDash, strokeWidth },
    encoding: { x, y: y("value") },
  });
  const found = new Map(rows.map((row) => [`${row.x} ${row.name}`, row.value]));
  const path = names.flatMap((name) =>
    xs.map((x) => ({ name, x, value: found.get(`${x} ${name}`) ?? null })),
  );
  const layer = [
    known(over) && shade,
    ideal.length && guide(ideal, DASHED, 1.2),
    communication.length && guide(communication, DOTTED, 2),
    {
      mark: { type: "rule", opacity: 0.7 },
      encoding: { x, y: y("low"), y2: { field: "high" }, color: byColour(names) },
    },
    linesOf(x, y("value"), names, { data: { values: path } }),
    marksOf(x, y("value"), names, [190, 45]),
    rows.some((row) => known(row.measured)) &&
      marksOf(x, y("measured"), names, [190, 70], {
        transform: [{ filter: "isValid(datum.measured)" }],
        mark: { type: "point", filled: false },
      }),
  ].filter(Boolean);
  return { params: [FOCUS], title, width, height: 240, data: { values: rows }, layer };
}

/* One of several such charts side by side, with its numbers. */
function curveFigure({ title, of, name, rows, xTitle, text, width, ...spec }) {
  if (!rows.length) return "";
  const some = (key, ...column) =>
    rows.some((row) => known(row[key]) && row[key] !== row.value) ? [number(key, ...column)] : [];
  return figure({
    title: `${title}, ${of}`,
    spec: curveChart(rows, { title, xTitle, width: Math.min(380, width - 90), ...spec }),
    table: () => ({
      name,
      rows,
      columns: [
        CELL,
        number("x", xTitle),
        number("value", title, text),
        ...some("low", "Lower quartile", text),
        ...some("high", "Upper quartile", text),
        ...some("measured", "Measured high water", text),
      ],
    }),
  });
}

/* Rows of such a chart; `figure` gives a cell's value, and quartiles where it has any. */
const pointsOf = (cells, x, figure) =>
  cells
    .map((cell) => ({ cell: cell.number, name: cell.name, x: x(cell), ...figure(cell) }))
    .filter((point) => known(point.value))
    .map((point) => ({ low: point.value, high: point.value, ...point }));

const stepOf = (cell) => ({ value: cell.step_s, low: cell.step_q1_s, high: cell.step_q3_s });

/* Throughput and memory, which charts along batches show too. */
function throughputAndMemory(draw, cells) {
  const rate = ({ units_per_s, step_s, step_q1_s, step_q3_s }) => ({
    value: units_per_s,
    // A longer step is a lower rate.
    low: known(units_per_s) ? (units_per_s * step_s) / step_q3_s : null,
    high: known(units_per_s) ? (units_per_s * step_s) / step_q1_s : null,
  });
  const memory = (cell) => ({ value: cell.memory_bytes, measured: cell.high_water_bytes });
  const most = Math.max(0, ...cells.map(memory).map(({ value, measured }) => Math.max(value ?? 0, measured ?? 0)));
  const { panels } = CHARTS.scaling;
  return [
    draw("rate", panels.rate.replace("{unit}", cells[0].unit), rate, {
      axis: { format: "~s" },
      log: true,
      text: "si",
    }),
    draw("memory", panels.memory, memory, { axis: bytesAxis(most), text: "bytes" }),
  ];
}

GROUPS.scaling = (target) => {
  const own = DATA.curves.filter((curve) => curve.subject === subjectNumber());
  if (!own.length) {
    return [
      nothing(
        "A scaling curve needs at least two meshes of one kind, with the same global batch " +
          "(strong scaling) or the same batch per device (weak scaling).",
      ),
    ];
  }
  const curve = own.find((one) => one.slug === chosen("curve")) ?? own[0];
  const off = hidden();
  const places = [...curve.cell.keys()].filter((place) => !off.has(CELLS[curve.cell[place]].name));
  if (!places.length) return [nothing("No implementation is chosen.")];
  const cells = places.map((place) => CELLS[curve.cell[place]]);
  const efficiency = new Map(
    places.map((place) => [
      curve.cell[place],
      {
        value: curve.efficiency[place],
        low: curve.efficiency_low[place],
        high: curve.efficiency_high[place],
      },
    ]),
  );
  const logarithmic = chosen("axes") !== "linear";
  const { x, note, panels, remarks } = CHARTS.scaling;
  const draw = (key, title, figure, { log = false, ...more }) =>
    curveFigure({
      title,
      of: curve.title,
      name: `${curve.slug}-${key}`,
      rows: pointsOf(cells, (cell) => cell.of.devices, figure),
      xTitle: x,
      width: widthOf(target),
      logX: logarithmic,
      log: log && logarithmic,
      over: curve.over,
      ...more,
    });
  const curves = own.map((each) => [each.slug, each.title]);
  const scales = [
    ["", "logarithmic"],
    ["linear", "linear"],
  ];
  return [
    choices(
      selector("Curve", "curve", curves, curve.slug, "scaling"),
      selector("Axes", "axes", scales, chosen("axes"), "scaling"),
    ),
    element(
      "div",
      { class: "panels" },
      draw("step", panels.step, stepOf, {
        axis: TIME_AXIS,
        log: true,
        ideal: curve.ideal,
        communication: curve.communication,
        text: "s",
      }),
      draw("efficiency", panels.efficiency, (cell) => efficiency.get(cell.number), {
        axis: { format: ".0%" },
        ideal: curve.ideal.map(([devices]) => [devices, 1]),
        text: "percent",
      }),
      ...throughputAndMemory(draw, cells),
    ),
    nothing(
      [
        note,
        curve.communication.length && remarks.communication,
        known(curve.over) && remarks.oversubscribed,
        cells.some((cell) => known(cell.high_water_bytes)) && remarks.high_water,
        "The choices of mesh and batch above do not apply to curves.",
      ]
        .filter(Boolean)
        .join(" "),
    ),
  ];
};
