// Charts as Vega-Lite specifications. A mark whose datum has `cell` leads to that cell.

/* A panel for each place, in the order of the rows. */
const panelsByPlace = (rows) => ({
  field: "place",
  type: "nominal",
  title: null,
  sort: [...new Set(rows.map((row) => row.place))],
});

/* Ratios at and beyond which a forest's axis may end: what is farther is written at its edge. */
const NEAREST = 1.05;
const FARTHEST = 1.5;

/* rows: {name, place, ratio, low, high, floor, paired, cell}. */
function forestChart(rows, { columns, width, margin }) {
  // Most intervals are to be seen well, whatever single implementations do.
  const far = rows
    .map((row) => Math.max(row.high ?? row.ratio, 1 / (row.low ?? row.ratio)))
    .sort((a, b) => a - b)[Math.floor(0.75 * (rows.length - 1))];
  const edge = Math.min(Math.max(1.3 * (far - 1) + 1, NEAREST, 1 + 2 * margin), FARTHEST);
  const least = Math.max(1 / edge, Math.min(...rows.map((row) => row.low ?? row.ratio)) / 1.01);
  const most = Math.min(edge, Math.max(...rows.map((row) => row.high ?? row.ratio)) * 1.01);
  const domain = [Math.min(least, 1 / (1 + 1.5 * margin)), Math.max(most, 1 + 1.5 * margin)];
  const clamped = (value) => Math.min(Math.max(value, domain[0]), domain[1]);
  const seen = new Set();
  const data = rows.map((row) => {
    const first = !seen.has(row.place);
    seen.add(row.place);
    const above = row.ratio > domain[1];
    const below = row.ratio < domain[0];
    return {
      ...row,
      first,
      side: above ? "above" : below ? "below" : "within",
      edge: above ? `${ratio(row.ratio)} \u25b8` : `\u25c2 ${ratio(row.ratio)}`,
      floor_low: clamped(1 / (1 + (row.floor ?? 0))),
      floor_high: clamped(1 + (row.floor ?? 0)),
      from: clamped(row.low ?? row.ratio),
      to: clamped(row.high ?? row.ratio),
    };
  });
  const names = namesIn(rows);
  const x = (field) => ({
    field,
    type: "quantitative",
    scale: { domain, zero: false, nice: false },
  });
  const axis = { title: null, tickCount: 4, format: "~r", grid: true };
  const y = {
    field: "name",
    type: "nominal",
    sort: typicalOrder(rows, (row) => row.ratio),
    axis: nameAxis(names),
  };
  const once = [{ filter: "datum.first" }];
  const rule = (at, more) => ({
    transform: once,
    mark: { type: "rule", color: "var(--muted)", ...more },
    encoding: { x: { datum: at } },
  });
  const written = (side, align, at) => ({
    transform: [{ filter: `datum.side === "${side}"` }],
    mark: { type: "text", align, fontSize: 11 },
    encoding: { x: { datum: at }, y, text: { field: "edge" }, color: byColour(names) },
  });
  return {
    params: [FOCUS],
    data: { values: data },
    facet: panelsByPlace(rows),
    columns,
    spec: {
      width,
      height: { step: 19 },
      layer: [
        {
          transform: once,
          mark: { type: "rect", color: "var(--shade)" },
          encoding: { x: x("floor_low"), x2: { field: "floor_high" } },
        },
        rule(1),
        rule(1 / (1 + margin), { strokeDash: DASHED }),
        rule(1 + margin, { strokeDash: DASHED }),
        {
          transform: [{ filter: 'datum.side === "within" && isValid(datum.low)' }],
          mark: { type: "rule", strokeWidth: 2.5 },
          encoding: { x: { ...x("from"), axis }, x2: { field: "to" }, y, color: byColour(names) },
        },
        {
          transform: [{ filter: 'datum.side === "within"' }],
          mark: { type: "point", filled: true, opacity: 1 },
          encoding: {
            x: x("ratio"),
            y,
            color: byColour(names),
            shape: byShape(names),
            size: focused(150, 32),
            fillOpacity: { condition: { test: "datum.paired", value: 1 }, value: 0 },
            strokeWidth: { condition: { test: "datum.paired", value: 0 }, value: 1.5 },
            stroke: byColour(names),
          },
        },
        written("above", "right", domain[1]),
        written("below", "left", domain[0]),
      ],
    },
    resolve: { axis: { x: "independent" } },
    spacing: { row: 14, column: 18 },
  };
}

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

/* rows: {name, mesh, batch, colour, label, status, cell}. */
function heatmapChart(rows, { columns, meshes, batches, names }) {
  const mesh = { field: "mesh", type: "nominal", sort: meshes };
  const batch = { field: "batch", type: "ordinal", sort: batches };
  const plain = { domain: false, ticks: false, labelOverlap: false };
  return {
    params: [FOCUS],
    data: { values: rows },
    facet: { field: "name", type: "nominal", title: null, sort: names },
    columns,
    spec: {
      width: Math.max(meshes.length * FIELD.width, 80),
      height: Math.max(batches.length * FIELD.height, 30),
      layer: [
        {
          mark: { type: "rect", cornerRadius: 2 },
          encoding: {
            x: { ...mesh, axis: { ...plain, title: null, labelAngle: -30, labelLimit: 120 } },
            y: { ...batch, axis: { ...plain, title: "batch" } },
            color: { field: "colour", type: "nominal", scale: null },
            stroke: focused("var(--ink)", "var(--paper)"),
            strokeWidth: focused(2, 1),
          },
        },
        {
          mark: { type: "text", fontSize: 10.5, limit: 58, color: "var(--ink)" },
          encoding: { x: mesh, y: batch, text: { field: "label" } },
        },
      ],
    },
    resolve: { axis: { x: "independent" } },
    spacing: 16,
  };
}

/* From -1 (good) to 1 (bad), by way of 0 (neither), in the colours of the theme. */
function heat(share) {
  const end = share < 0 ? "var(--c0)" : "var(--c1)";
  return `color-mix(in oklab, ${end} ${Math.round(55 * Math.min(Math.abs(share), 1))}%, var(--shade))`;
}

/* rows: {name, place, part, seconds, number, cell}, a row a part. */
function partsChart(rows, { columns, width, share }) {
  const parts = PARTS.filter(([key]) => rows.some((row) => row.part === key && row.seconds > 0));
  const names = typicalOrder(rows, (row) => row.whole);
  return {
    data: { values: rows },
    transform: [{ filter: "datum.seconds > 0" }],
    facet: panelsByPlace(rows),
    columns,
    spec: {
      width,
      height: { step: 19 },
      mark: { type: "bar", height: { band: 0.78 } },
      encoding: {
        x: {
          field: "seconds",
          type: "quantitative",
          stack: share ? "normalize" : "zero",
          axis: share
            ? { title: "share of the traced step", format: ".0%", tickCount: 5 }
            : { ...TIME_AXIS, title: "traced step, waited for", tickCount: 5 },
        },
        y: {
          field: "name",
          type: "nominal",
          sort: names,
          axis: nameAxis(names),
        },
        color: {
          field: "part",
          type: "nominal",
          scale: { domain: parts.map(([key]) => key), range: parts.map(([, , colour]) => colour) },
          legend: {
            title: null,
            columns: 8,
            labelExpr: `{${parts.map(([key, title]) => `"${key}":"${title}"`).join(",")}}[datum.label]`,
          },
        },
        order: { field: "number" },
      },
    },
    resolve: share ? {} : { scale: { x: "independent" } },
    spacing: 18,
  };
}

/* rows: {name, panel, x, y, cell}, and roofs with `roof: true`, all in FLOP and FLOP/s a device. */
function rooflineChart(rows, { columns, width }) {
  const names = namesIn(rows);
  const along = (field, title, share) => {
    const domain = padded(
      rows.map((row) => row[field]),
      share,
    );
    return {
      field,
      type: "quantitative",
      scale: { type: "log", domain, nice: false },
      axis: { title, format: "~s", values: logTicks(domain) },
    };
  };
  const x = along("x", "intensity: compiled FLOP a byte accessed", 0.02);
  const y = along("y", "compiled FLOP/s a device", 0.06);
  return {
    params: [FOCUS],
    data: { values: rows },
    facet: {
      field: "panel",
      type: "nominal",
      title: null,
      sort: [...new Set(rows.map((row) => row.panel))],
    },
    columns,
    spec: {
      width,
      height: 240,
      layer: [
        {
          transform: [{ filter: "datum.roof" }],
          mark: { type: "line", color: "var(--ink)", strokeWidth: 1.3 },
          encoding: { x, y },
        },
        {
          transform: [{ filter: "!datum.roof" }],
          mark: { type: "point", filled: true, opacity: 0.9 },
          encoding: { x, y, color: byColour(names), shape: byShape(names), size: focused(220, 60) },
        },
      ],
    },
    spacing: 18,
  };
}

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

/* rows: {name, number, value}: samples of a few arms of one block, as distributions. */
function distributionChart(rows, { width, names, colours, title }) {
  const scale = { domain: names, range: colours };
  const x = {
    field: "value",
    type: "quantitative",
    scale: { zero: false, nice: true },
    axis: { ...TIME_AXIS, title: "step time", tickCount: 5 },
  };
  return {
    title,
    width,
    height: 220,
    data: { values: rows },
    transform: [
      { window: [{ op: "cume_dist", as: "share" }], sort: [{ field: "value" }], groupby: ["name"] },
    ],
    encoding: {
      x,
      y: {
        field: "share",
        type: "quantitative",
        axis: { title: "share of rounds at most that", format: ".0%", tickCount: 5 },
      },
      color: {
        field: "name",
        type: "nominal",
        scale,
        legend: { title: null, columns: 2, labelLimit: 260, symbolType: "circle" },
      },
    },
    layer: [
      { mark: { type: "line", interpolate: "step-after", strokeWidth: 1.3 } },
      { mark: { type: "point", filled: true, size: 14, opacity: 0.8 } },
    ],
  };
}

/* rows: {round, launch, ratio}: how a ratio went over the rounds. */
function driftChart(rows, { width, margin, title }) {
  const y = {
    field: "ratio",
    type: "quantitative",
    scale: { zero: false },
    axis: { title: "over the baseline, round by round", tickCount: 5 },
  };
  return {
    title,
    width,
    height: 220,
    data: { values: rows },
    layer: [
      ...[1 / (1 + margin), 1 + margin].map((end) => ({
        data: { values: [{}] },
        mark: { type: "rule", color: "var(--muted)", strokeDash: DASHED },
        encoding: { y: { datum: end } },
      })),
      {
        mark: { type: "point", filled: true, size: 18, opacity: 0.85 },
        encoding: {
          x: {
            field: "round",
            type: "quantitative",
            axis: { title: "round, in order of time", grid: false, tickMinStep: 1 },
          },
          y,
          color: {
            field: "launch",
            type: "nominal",
            scale: { range: COLOURS },
            legend: rows.some((row) => row.launch > 1)
              ? { title: "launch", symbolType: "circle" }
              : null,
          },
        },
      },
    ],
  };
}

/* rows: {minutes, value, what}: one panel of the host's timeline. */
function timelineChart(rows, { width, title, axis, log, height = 130 }) {
  const domain = padded(
    rows.map((row) => row.value),
    0.05,
  );
  const whats = [...new Set(rows.map((row) => row.what))];
  return {
    title,
    width,
    height,
    data: { values: rows },
    mark: { type: "point", filled: true, size: 12, opacity: 0.8, clip: true },
    encoding: {
      x: {
        field: "minutes",
        type: "quantitative",
        axis: { title: "minutes since the first round", grid: false },
      },
      y: {
        field: "value",
        type: "quantitative",
        scale: log ? { type: "log", domain, nice: false } : { zero: true },
        axis: { title: null, ...(log ? { values: logTicks(domain) } : { tickCount: 4 }), ...axis },
      },
      color: {
        field: "what",
        type: "nominal",
        scale: { domain: whats, range: ["var(--c0)", "var(--c1)", "var(--c3)"] },
        legend: whats.length > 1 ? { title: null, symbolType: "circle" } : null,
      },
    },
  };
}
