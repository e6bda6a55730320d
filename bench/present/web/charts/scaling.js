// Step time, efficiency, throughput and memory along the devices of a scaling curve.

const HEIGHT = 240;
const BESIDE = 1.2; // The factor by which a logarithmic axis extends beyond its first and last tick.
const LINE = 13; // Height of a label at the end of a curve.
const LABEL = 145; // Space beside the curves, for twenty characters.

/* Ascending places, moved on so that the first is at least `free` and all are a line apart. */
const moved = (places, free = -Infinity) =>
  places.map((place) => {
    const at = Math.max(place, free);
    free = at + LINE;
    return at;
  });
const flipped = (places) => places.map((place) => -place).reverse();

/* Labels of the curves that reach the last x value, beside their ends and without overlap.
   share: where a value lies on the vertical axis, from 0 below to 1 above. */
function endLabels(rows, last, share) {
  const short = (name) => (name.length > 20 ? `${name.slice(0, 8)}\u2026${name.slice(-11)}` : name);
  const labels = rows
    .filter(({ x }) => x === last)
    .map((row) => ({ ...row, text: short(row.name), at: HEIGHT * (1 - share(row.value)) }))
    .sort((a, b) => a.at - b.at);
  const ends = labels.map(({ at }) => at);
  // Moved down as far as needed, and up; the mean of both keeps labels apart and near their ends.
  const up = flipped(moved(flipped(ends)));
  const between = moved(ends).map((place, number) => (place + up[number]) / 2);
  const within = flipped(moved(flipped(moved(between, LINE / 2)), -HEIGHT));
  return labels.map((row, number) => ({ ...row, at: within[number] }));
}

/* Values of a specification: one quantity over devices or batches. rows: {name, x, value, low, high,
   cell}, with `measured` for hollow marks; ideal: pairs of x and value; over: where
   the shade begins. */
function curveOf(rows, options) {
  const { title, xTitle, axis, log, width, ideal = [], over } = options;
  const xs = ascending(rows.map((row) => row.x));
  const ends = [xs[0] / BESIDE, xs.at(-1) * BESIDE];
  const all = [
    ...rows.flatMap((row) => [row.low, row.high, row.measured]),
    ...ideal.map(([, value]) => value),
  ].filter((value) => value > 0);
  const domain = log ? padded(all, 0.1) : [0, 1.08 * Math.max(...all)];
  const scaled = log ? Math.log : (value) => value;
  const [low, high] = domain.map(scaled);
  const share = (value) => (scaled(value) - low) / (high - low);
  return {
    ...{ title, xTitle, width, height: HEIGHT, rows, xs },
    labels: endLabels(rows, xs.at(-1), share),
    xScale: { type: "log", base: 2, domain: ends, nice: false },
    yScale: { domain, nice: false, ...(log ? { type: "log" } : {}) },
    yAxis: { title: null, ...(log ? { values: logTicks(domain) } : { tickCount: 5 }), ...axis },
    shade: known(over) ? [{ x: Math.max(over, ends[0]), to: ends[1] }] : [],
    guides: ideal.map(([x, value]) => ({ x, value })),
  };
}

/* A function that draws one of several such charts side by side, with its table; `valueOf`
   returns a cell's value, and quartiles if it has any. of: which cells; x: of a cell. */
function curvesOf(cells, { of, name, x, xTitle, over, target }) {
  const width = Math.max(150, Math.min(265, widthOf(target) - 60 - LABEL));
  return (key, title, valueOf, { text, ...more }) => {
    const rows = cells
      .map((cell) => ({ cell: cell.number, name: cell.name, x: x(cell), ...valueOf(cell) }))
      .filter((point) => known(point.value))
      .map((point) => ({ low: point.value, high: point.value, ...point }));
    if (!rows.length) return "";
    const differs = (key) => rows.some((row) => known(row[key]) && row[key] !== row.value);
    const some = (key, title) => (differs(key) ? [number(key, title, text)] : []);
    const options = { title, xTitle, width, over, ...more };
    return figure("curve", curveOf(rows, options), {
      title: `${title}, ${of}`,
      name: `${name}-${key}`,
      columns: [
        CELL,
        number("x", xTitle),
        number("value", title, text),
        ...some("low", "Lower quartile"),
        ...some("high", "Upper quartile"),
        ...some("measured", "Measured high water"),
      ],
    });
  };
}

const stepOf = (cell) => ({ value: cell.step_s, low: cell.step_q1_s, high: cell.step_q3_s });

/* Throughput and memory, which the charts over batches also show. */
function throughputAndMemory(draw, cells) {
  const rate = ({ units_per_s: value, step_s, step_q1_s, step_q3_s }) => {
    const units = value * step_s; // A longer step is a lower rate.
    return { value, low: units / step_q3_s, high: units / step_q1_s };
  };
  const memory = (cell) => ({ value: cell.memory_bytes, measured: cell.high_water_bytes });
  const most = Math.max(0, ...cells.map(memory).flatMap(Object.values).filter(known));
  const { panels } = CHARTS.scaling;
  const inPrefixes = { axis: { format: "~s" }, log: true, text: "si" };
  return [
    draw("rate", panels.rate.replace("{unit}", cells[0].unit), rate, inPrefixes),
    draw("memory", panels.memory, memory, { axis: bytesAxis(most), text: "bytes" }),
  ];
}

const LINES = [["", "the fastest five and the baseline"], "all"];

/* The implementations shown by default if there are more than MOST_LINES; null for all. */
const MOST_LINES = 8;
function fastestOf(cells) {
  if (unique(cells.map((cell) => cell.name)).length <= MOST_LINES) return null;
  const largest = Math.max(...cells.map((cell) => cell.of.devices));
  const last = cells.filter((cell) => cell.of.devices === largest);
  const fastest = last.sort((a, b) => a.step_s - b.step_s).slice(0, 5);
  return new Set([...fastest, ...cells.filter((cell) => cell.isBaseline)].map((cell) => cell.name));
}

GROUPS.scaling = (target) => {
  const own = DATA.curves.filter((curve) => curve.subject === subjectNumber());
  if (!own.length) return null;
  const curve = own.find((one) => one.slug === chosen("curve")) ?? own[0];
  const off = hidden();
  const { cell, efficiency: value, efficiency_q1: low, efficiency_q3: high } = curve;
  const points = rowsOf({ cell, value, low, high }).filter((one) => !off.has(CELLS[one.cell].name));
  if (!points.length) return [nothing("No implementation is chosen.")];
  const every = points.map((one) => CELLS[one.cell]);
  const few = fastestOf(every);
  const all = !few || chosen("lines") === "all";
  const cells = every.filter(({ name }) => all || few.has(name));
  const efficiency = new Map(points.map((one) => [one.cell, one]));
  const { x: xTitle, note, panels, remarks } = CHARTS.scaling;
  const { title: of, slug: name, over, ideal } = curve;
  const x = (cell) => cell.of.devices;
  const draw = curvesOf(cells, { of, name, x, xTitle, target, over });
  const notes = [
    note,
    known(over) && remarks.oversubscribed,
    cells.some((cell) => known(cell.high_water_bytes)) && remarks.high_water,
    "The choices of mesh and batch above do not apply to curves.",
  ];
  const axis = { labelExpr: "format(datum.value, '~s') + 's'" };
  const inSeconds = { axis, log: true, text: "s", ideal };
  const shares = { axis: { format: ".0%" }, text: "percent", ideal: ideal.map(([at]) => [at, 1]) };
  const charts = [
    draw("step", panels.step, stepOf, inSeconds),
    draw("efficiency", panels.efficiency, (cell) => efficiency.get(cell.number), shares),
    ...throughputAndMemory(draw, cells),
  ];
  return [
    choices(
      selector("Curve", "curve", own.map((each) => [each.slug, each.title]), "scaling", name),
      few && selector("Lines", "lines", LINES, "scaling"),
    ),
    element("div.panels", ...charts),
    nothing(notes.filter(Boolean).join(" ")),
  ];
};
