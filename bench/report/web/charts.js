// Charts as Vega-Lite specifications. A mark whose datum has `cell` leads to that cell.

const COLOURS = Array.from({ length: 8 }, (_, number) => `var(--c${number})`);
const SHAPES = [
  "circle",
  "square",
  "triangle-up",
  "diamond",
  "cross",
  "triangle-down",
  "triangle-right",
  "triangle-left",
];
const PARTS = [
  ["dispatch", "Dispatch", "var(--c7)"],
  ["matmul", "Matrix products", "var(--c0)"],
  ["elementwise", "Elementwise", "var(--c5)"],
  ["layout", "Layout", "var(--c6)"],
  ["unknown", "Unknown", "var(--muted)"],
  ["wait", "Waiting", "var(--c4)"],
  ["move", "Moving data", "var(--c1)"],
  ["idle", "Idle", "var(--line)"],
];
const FARTHEST = 1.5; // Ratios beyond it are written at the edge, so that the rest stays readable.
const BESIDE = 1.2; // By how much an axis of devices or batches goes beyond the first and the last.
const DASHED = [4, 3];
const DOTTED = [1, 3];

const colourOf = (number) => COLOURS[number % COLOURS.length];
// The ninth implementation has the first one's colour, and another shape.
const shapeOf = (number) => SHAPES[(number + Math.floor(number / COLOURS.length)) % SHAPES.length];

const dark = () =>
  document.documentElement.dataset.theme === "dark" ||
  (document.documentElement.dataset.theme !== "light" &&
    matchMedia("(prefers-color-scheme: dark)").matches);

function config() {
  const font = getComputedStyle(document.body).fontFamily;
  const text = {
    labelColor: "var(--muted)",
    titleColor: "var(--muted)",
    labelFont: font,
    titleFont: font,
    titleFontWeight: 400,
    labelFontSize: 11,
    titleFontSize: 11,
  };
  return {
    aria: false, // The figure has a name, and its numbers are in a table.
    background: null,
    font,
    view: { stroke: null },
    axis: {
      ...text,
      domainColor: "var(--line)",
      tickColor: "var(--line)",
      gridColor: "var(--line)",
      gridOpacity: 0.6,
      labelOverlap: true,
    },
    header: {
      ...text,
      labelColor: "var(--ink)",
      labelFontWeight: 600,
      titleColor: "var(--ink)",
      labelAnchor: "start",
      labelPadding: 4,
    },
    legend: {
      ...text,
      labelColor: "var(--ink)",
      symbolStrokeWidth: 0,
      orient: "top",
      titlePadding: 8,
    },
    title: { font, color: "var(--ink)", fontSize: 12, fontWeight: 600, anchor: "start" },
    text: { fill: "var(--ink)", font },
  };
}

// What colours and shapes mean is shown by the page's own list of implementations.
const byColour = (names) => ({
  field: "name",
  type: "nominal",
  legend: null,
  scale: { domain: names, range: names.map((name) => colourOf(IMPLEMENTATIONS.indexOf(name))) },
});
const byShape = (names) => ({
  field: "name",
  type: "nominal",
  legend: null,
  scale: { domain: names, range: names.map((name) => shapeOf(IMPLEMENTATIONS.indexOf(name))) },
});
const namesIn = (rows) => [...new Set(rows.map((row) => row.name).filter(known))].sort();

// The cell under the pointer, in the charts that show single cells.
const FOCUS = { name: "focus", value: -1 };
const focused = (then, otherwise) => ({
  condition: { test: "datum.cell === focus", value: then },
  value: otherwise,
});

const TIME_AXIS = { labelExpr: "format(datum.value, '~s') + 's'" };
const BYTES_AXIS = { labelExpr: "format(datum.value, '~s') + 'B'" };
/* Ticks of a logarithmic axis: powers of ten, and 2 and 5 of each where there are few of them. */
function logTicks([low, high]) {
  const steps = high / low > 1e3 ? [1] : [1, 2, 5];
  const powers = Array.from(
    { length: Math.ceil(Math.log10(high / low)) + 3 },
    (_, n) => 10 ** (Math.floor(Math.log10(low)) + n - 1),
  );
  return powers
    .flatMap((power) => steps.map((step) => power * step))
    .filter((tick) => tick >= low && tick <= high);
}
const padded = (values, share = 0.15) => {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const by = Math.max(high / low, 1.2) ** share;
  return [low / by, high * by];
};

function forestChart(rows, { columns, width, margin }) {
  const names = namesIn(rows);
  const seen = new Set();
  const data = rows.map((row) => {
    const first = !seen.has(row.place);
    seen.add(row.place);
    const beyond = row.ratio > FARTHEST;
    return {
      ...row,
      first,
      beyond,
      edge: beyond ? `${ratio(row.ratio)} \u25b8` : "",
      floor_low: 1 / (1 + (row.floor ?? 0)),
      floor_high: 1 + (row.floor ?? 0),
      low: beyond ? null : row.low,
      high: beyond ? null : Math.min(row.high ?? row.ratio, FARTHEST),
    };
  });
  const within = data.filter((row) => !row.beyond);
  const low = Math.min(0.95, ...within.map((row) => row.low ?? row.ratio));
  const high = Math.max(
    1.05,
    data.some((row) => row.beyond) ? FARTHEST : 0,
    ...within.map((row) => row.high ?? row.ratio),
  );
  const domain = [low - 0.03 * (high - low), high + 0.03 * (high - low)];
  const x = (field, more = {}) => ({
    field,
    type: "quantitative",
    scale: { domain, zero: false, nice: false, clamp: true },
    ...more,
  });
  const y = {
    field: "name",
    type: "nominal",
    sort: names,
    axis: { title: null, labelColor: "var(--ink)", labelLimit: 240, ticks: false, domain: false },
  };
  const once = [{ filter: "datum.first" }];
  const typical = names
    .map((name) => {
      const own = data
        .filter((row) => row.name === name)
        .map((row) => row.ratio)
        .sort((a, b) => a - b);
      return [name, own[Math.floor(own.length / 2)]];
    })
    .sort((a, b) => a[1] - b[1])
    .map(([name]) => name);
  y.sort = typical;
  return {
    params: [FOCUS],
    data: { values: data },
    facet: { field: "place", type: "nominal", title: null, sort: [...seen] },
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
        {
          transform: once,
          mark: { type: "rule", color: "var(--muted)" },
          encoding: { x: { datum: 1 } },
        },
        ...[1 / (1 + margin), 1 + margin].map((end) => ({
          transform: once,
          mark: { type: "rule", color: "var(--muted)", strokeDash: DASHED },
          encoding: { x: { datum: end } },
        })),
        {
          mark: { type: "rule", strokeWidth: 2 },
          encoding: {
            x: x("low", { axis: { title: null, tickCount: 4, format: "~r", grid: true } }),
            x2: { field: "high" },
            y,
            color: byColour(names),
          },
        },
        {
          transform: [{ filter: "!datum.beyond" }],
          mark: { type: "point", filled: true, opacity: 1 },
          encoding: {
            x: x("ratio"),
            y,
            color: byColour(names),
            shape: byShape(names),
            size: focused(160, 50),
            fillOpacity: { condition: { test: "datum.paired", value: 1 }, value: 0 },
            strokeWidth: { condition: { test: "datum.paired", value: 0 }, value: 1.5 },
            stroke: byColour(names),
          },
        },
        {
          transform: [{ filter: "datum.beyond" }],
          mark: { type: "text", align: "right", fontSize: 11 },
          encoding: { x: { datum: FARTHEST }, y, text: { field: "edge" }, color: byColour(names) },
        },
      ],
    },
    spacing: { row: 18, column: 18 },
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
    axis: { title: xTitle, values: xs, format: "~s", grid: false },
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

/* rows: {name, mesh, batch, value, label, status, cell}; better: "ratio", "more" or "less". */
function heatmapChart(rows, { columns, meshes, batches, better }) {
  const size = {
    width: Math.max(meshes.length * FIELD.width, 80),
    height: Math.max(batches.length * FIELD.height, 30),
  };
  const [good, middle, bad] = dark()
    ? ["#2f86c4", "#2a323b", "#c8641f"]
    : ["#6fb1dd", "#f4f5f6", "#f0a06a"];
  const values = rows.map((row) => row.value).filter(known);
  const far = Math.max(...values.map(Math.abs), 0.02);
  const scale =
    better === "ratio"
      ? { domain: [-far, 0, far], range: [good, middle, bad], interpolate: "rgb", clamp: true }
      : {
          interpolate: "rgb",
          domain: [Math.min(...values), Math.max(...values)],
          range: better === "less" ? [good, middle] : [middle, good],
        };
  return {
    params: [FOCUS],
    data: { values: rows },
    facet: { field: "name", type: "nominal", title: null },
    columns,
    spec: {
      ...size,
      layer: [
        {
          mark: { type: "rect", cornerRadius: 2 },
          encoding: {
            x: {
              field: "mesh",
              type: "nominal",
              sort: meshes,
              axis: {
                title: null,
                labelAngle: -30,
                labelLimit: 120,
                labelOverlap: false,
                domain: false,
                ticks: false,
              },
            },
            y: {
              field: "batch",
              type: "ordinal",
              sort: batches,
              axis: { title: "batch", domain: false, ticks: false },
            },
            color: {
              condition: {
                test: "isValid(datum.value)",
                field: "value",
                type: "quantitative",
                scale,
                legend: null,
              },
              value: "var(--shade)",
            },
            stroke: focused("var(--ink)", "var(--paper)"),
            strokeWidth: focused(2, 1),
          },
        },
        {
          mark: { type: "text", fontSize: 10.5, limit: 58 },
          encoding: {
            x: { field: "mesh", type: "nominal", sort: meshes },
            y: { field: "batch", type: "ordinal", sort: batches },
            text: { field: "label" },
            color: {
              condition: { test: "isValid(datum.value)", value: "var(--ink)" },
              value: "var(--muted)",
            },
          },
        },
      ],
    },
    spacing: 16,
  };
}

/* rows: {name, place, part, seconds, number, cell}, a row a part. */
function partsChart(rows, { columns, width, share }) {
  const parts = PARTS.filter(([key]) => rows.some((row) => row.part === key && row.seconds > 0));
  const whole = new Map();
  for (const row of rows) whole.set(row.name, (whole.get(row.name) ?? 0) + row.seconds);
  const names = [...whole].sort((a, b) => a[1] - b[1]).map(([name]) => name);
  return {
    data: { values: rows },
    transform: [{ filter: "datum.seconds > 0" }],
    facet: {
      field: "place",
      type: "nominal",
      title: null,
      sort: [...new Set(rows.map((row) => row.place))],
    },
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
          axis: {
            title: null,
            labelColor: "var(--ink)",
            labelLimit: 240,
            ticks: false,
            domain: false,
          },
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
