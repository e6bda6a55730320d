// Figures along devices or batches.

/* One figure along a curve. rows: {name, x, value, low, high, cell, over}; lines: {x, value, kind}. */
function curveChart(rows, { title, xTitle, axis, log, logX, width, lines = [], over }) {
  const names = namesIn(rows);
  const xs = [...new Set(rows.map((row) => row.x))].sort((a, b) => a - b);
  const x = (more = {}) => ({
    field: "x",
    type: "quantitative",
    scale: logX
      ? { type: "log", base: 2, domain: [xs[0] / BESIDE, xs.at(-1) * BESIDE], nice: false }
      : { domain: [0, xs.at(-1) * 1.08], nice: false },
    axis: { title: xTitle, values: xs, format: "d", grid: false },
    ...more,
  });
  const all = [
    ...rows.flatMap((row) => [row.low ?? row.value, row.high ?? row.value]),
    ...lines.map((line) => line.value),
  ].filter((value) => known(value) && value > 0);
  const scale = log
    ? { type: "log", domain: padded(all, 0.1), nice: false }
    : { domain: [0, 1.08 * Math.max(...all)], nice: false };
  const ticks = log ? { values: logTicks(scale.domain) } : { tickCount: 5 };
  const y = (field) => ({
    field,
    type: "quantitative",
    scale,
    axis: { title: null, ...ticks, ...axis },
  });
  const layers = [];
  if (known(over)) {
    layers.push({
      data: { values: [{ from: over, to: logX ? xs.at(-1) * BESIDE : xs.at(-1) * 1.08 }] },
      mark: { type: "rect", color: "var(--shade)" },
      encoding: { x: { ...x(), field: "from" }, x2: { field: "to" } },
    });
  }
  for (const [kind, dash] of [
    ["ideal", DASHED],
    ["communication", DOTTED],
  ]) {
    const own = lines.filter((line) => line.kind === kind);
    if (own.length) {
      layers.push({
        data: { values: own },
        mark: {
          type: "line",
          color: "var(--muted)",
          strokeDash: dash,
          strokeWidth: kind === "ideal" ? 1.2 : 2,
        },
        encoding: { x: x(), y: y("value") },
      });
    }
  }
  // A line breaks where there is no point.
  const found = new Map(rows.map((row) => [`${row.x} ${row.name}`, row.value]));
  const path = names.flatMap((name) =>
    xs.map((x) => ({ name, x, value: found.get(`${x} ${name}`) ?? null })),
  );
  layers.push(
    {
      mark: { type: "rule", opacity: 0.7 },
      encoding: { x: x(), y: y("low"), y2: { field: "high" }, color: byColour(names) },
    },
    {
      data: { values: path },
      mark: { type: "line", strokeWidth: 1.5, invalid: "break-paths-show-path-domains" },
      encoding: { x: x(), y: y("value"), color: byColour(names) },
    },
    {
      mark: { type: "point", filled: true, opacity: 1 },
      encoding: {
        x: x(),
        y: y("value"),
        color: byColour(names),
        shape: byShape(names),
        size: focused(190, 45),
      },
    },
  );
  return { params: [FOCUS], title, width, height: 240, data: { values: rows }, layer: layers };
}

/* Charts of single figures side by side, along devices or batches. */
function linesFigure({ title, of, name, rows, xTitle, text, width, ...spec }) {
  if (!rows.length) return "";
  const spread = rows.some((row) => row.low !== row.value);
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
        ...(spread
          ? [number("low", "Lower quartile", text), number("high", "Upper quartile", text)]
          : []),
      ],
    }),
  });
}

/* A figure of cells: {cell, name, x, value, low, high}, quartiles where it has any. */
function pointsOf(cells, x, figure) {
  return cells
    .map((cell) => ({ cell: cell.number, name: cell.name, x: x(cell), ...figure(cell) }))
    .filter((point) => known(point.value))
    .map((point) => ({ low: point.value, high: point.value, ...point }));
}

const stepOf = (cell) => ({ value: cell.step_s, low: cell.step_q1_s, high: cell.step_q3_s });

const memoryOf = (cell) => ({ value: cell.memory_bytes });

const mostMemory = (cells) => Math.max(0, ...cells.map((cell) => cell.memory_bytes ?? 0));

const rateOf = (cell) => ({
  value: cell.units_per_s,
  // A longer step is a lower rate.
  low: known(cell.units_per_s) ? (cell.units_per_s * cell.step_s) / cell.step_q3_s : null,
  high: known(cell.units_per_s) ? (cell.units_per_s * cell.step_s) / cell.step_q1_s : null,
});

function curves(target) {
  const own = DATA.curves.filter((curve) => curve.subject === subjectNumber());
  if (!own.length) {
    return [
      nothing(
        "A curve needs at least two meshes of one kind, at one batch in all (strong scaling) or " +
          "on each device (weak scaling).",
      ),
    ];
  }
  const curve = own.find((one) => one.slug === chosen("curve")) ?? own[0];
  const off = hidden();
  const places = curve.cell
    .map((_, place) => place)
    .filter((place) => !off.has(CELLS[curve.cell[place]].name));
  const cells = places.map((place) => CELLS[curve.cell[place]]);
  if (!cells.length) return [nothing("No implementation is chosen.")];
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
  const devices = ascending(cells.map((cell) => cell.of.devices));
  const bound = communicationBound(cells, devices);
  const over = oversubscribedFrom(cells, devices);
  const draw = (key, title, figure, more) =>
    linesFigure({
      title,
      of: curve.title,
      name: `${curve.slug}-${key}`,
      rows: pointsOf(cells, (cell) => cell.of.devices, figure),
      xTitle: "devices",
      width: widthOf(target),
      logX: logarithmic,
      over,
      ...more,
    });
  return [
    choices(
      selector(
        "Curve",
        "curve",
        own.map((each) => [each.slug, each.title]),
        curve.slug,
        "curves",
      ),
      selector(
        "Axes",
        "axes",
        [
          ["", "logarithmic"],
          ["linear", "linear"],
        ],
        chosen("axes"),
        "curves",
      ),
    ),
    element(
      "div",
      { class: "panels" },
      draw("step", "Step time (lower is better)", stepOf, {
        axis: TIME_AXIS,
        log: logarithmic,
        lines: [...idealTimes(curve.kind, cells, devices), ...bound],
        text: "s",
      }),
      draw(
        "efficiency",
        "Parallel efficiency (higher is better)",
        (cell) => efficiency.get(cell.number),
        {
          axis: { format: ".0%" },
          lines: devices.map((x) => ({ kind: "ideal", x, value: 1 })),
          text: "percent",
        },
      ),
      draw("rate", `Throughput, ${cells[0].unit} a second`, rateOf, {
        axis: { format: "~s" },
        log: logarithmic,
        text: "si",
      }),
      draw("memory", "Memory a device, as planned", memoryOf, {
        axis: bytesAxis(mostMemory(cells)),
        text: "bytes",
      }),
    ),
    nothing(
      "Points are medians, bars quartiles. Efficiency is against the same implementation on the " +
        "smallest mesh. Dashed: ideal, from the fastest there." +
        (bound.length
          ? " Dotted: what communication alone would take, at the rate of an all-reduce that was " +
            "measured in this run, for the one of these that sends least."
          : "") +
        (known(over)
          ? " Shaded: more devices than cores, which shows what dispatch and communication cost, " +
            "not how the step scales."
          : "") +
        " All meshes and the batch of the curve are drawn, whatever is chosen above.",
    ),
  ];
}

/* From the fastest on the smallest mesh. */
function idealTimes(kind, cells, devices) {
  const first = cells.filter((cell) => cell.of.devices === devices[0]);
  const best = Math.min(...first.map((cell) => cell.step_s));
  return devices.map((x) => ({
    kind: "ideal",
    x,
    value: kind === "strong" ? (best * devices[0]) / x : best,
  }));
}

/* The least time that communication alone takes on each mesh; empty if it is known of one only. */
function communicationBound(cells, devices) {
  const least = devices.flatMap((x) => {
    const known = cells.filter((cell) => cell.of.devices === x && cell.communication_s > 0);
    if (!known.length) return [];
    const value = Math.min(...known.map((cell) => cell.communication_s));
    return [{ kind: "communication", x, value }];
  });
  return least.length > 1 ? least : [];
}

/* Number of devices, between two that were measured, from which they share cores; null for none. */
function oversubscribedFrom(cells, devices) {
  const shared = new Set(
    cells.filter((cell) => cell.of.oversubscribed).map((cell) => cell.of.devices),
  );
  const first = devices.findIndex((count) => shared.has(count));
  if (first < 0) return null;
  return first ? Math.sqrt(devices[first - 1] * devices[first]) : devices[0] / BESIDE;
}
