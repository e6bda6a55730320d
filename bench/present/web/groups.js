// The groups of charts. Each returns what there is to show for the reader's choices.

const MOST_PANELS = 12;

const unique = (values) => [...new Set(values)];
const ascending = (values) => unique(values).sort((a, b) => a - b);
const choices = (...selectors) => element("div", { class: "choices" }, ...selectors);
const nothing = (text) => element("p", { class: "note" }, text);
const inSeconds = (value) => si(value, "s");
const inPlain = (value) => si(value, "");
const significantOrMissing = (value) => (known(value) ? significant(value) : MISSING);

/* Columns of the tables behind charts, whose rows refer to cells by their place. A cell's whole name
   would leave a narrow screen no room for its figures. */
const CELL = {
  key: "cell",
  title: "Implementation",
  filter: (row) => CELLS[row.cell].name,
  value: (row) => CELLS[row.cell].full,
  node: (row) => cellLink(CELLS[row.cell], CELLS[row.cell].name),
  detail: (row) => whereOf(CELLS[row.cell]),
};
const whereOf = (cell) =>
  [DATA.subjects.length > 1 ? cell.of.subjectName : "", cell.of.place].filter(Boolean).join(", ");
const NAME = { key: "name", title: "Implementation", filter: true, align: "long" };
const VERDICT = { key: "verdict", title: "Verdict", filter: true };
const number = (key, title, text, note) => ({ key, title, text, note, align: "right" });

/* The cells of at most so many panels, a panel a `key`, and what is said of the others. */
function panelled(cells, group, what, key) {
  const panels = unique(cells.map(key));
  if (chosen("all") === group || panels.length <= MOST_PANELS) return [cells, ""];
  const shown = new Set(panels.slice(0, MOST_PANELS));
  const button = element("button", { type: "button" }, "Draw all");
  button.addEventListener("click", () => {
    choose({ all: group });
    redraw([group]);
  });
  const left = `Not drawn: ${panels.length - MOST_PANELS} of ${panels.length} ${what}. `;
  return [
    cells.filter((cell) => shown.has(key(cell))),
    element("p", { class: "note" }, left, button),
  ];
}

const blockOf = (cell) => cell.block;

/* Panels side by side: only the first has labels, which take so much room. */
const LABELS = 210;
const columnsFor = (target, each, panels, labels) =>
  Math.max(1, Math.min(4, unique(panels).length, Math.floor((widthOf(target) - labels) / each)));
const panelWidth = (target, columns, labels, most) =>
  Math.min(most, Math.max(110, (widthOf(target) - labels) / columns - 24));

function ratios(target) {
  const compared = byPlace(selection()).filter((cell) => known(cell.ratio) && !cell.isBaseline);
  if (!compared.length) return [nothing("No ratio to a baseline here.")];
  const [shown, note] = panelled(compared, "ratios", "blocks", blockOf);
  const rows = shown.map((cell) => ({
    cell: cell.number,
    name: cell.name,
    place: cell.of.place,
    ratio: cell.ratio,
    low: cell.ratio_low,
    high: cell.ratio_high,
    paired: cell.paired,
    verdict: cell.verdict,
    floor: floorOf(cell.of),
  }));
  const { margin } = shown[0].of;
  const columns = columnsFor(
    target,
    250,
    rows.map((row) => row.place),
    LABELS,
  );
  const width = panelWidth(target, columns, LABELS, 320);
  const chart = figure({
    title: "Step time over the baseline's",
    caption:
      "Step time over the baseline's: left of 1 is faster. Lines are 95 % intervals, the dashed " +
      `lines the margin of ${percent(margin)}. The shaded band is the noise floor: how far two ` +
      "copies of the baseline may differ in that block. A hollow mark was measured apart and " +
      "has no interval.",
    spec: forestChart(rows, { columns, margin, width }),
    table: () => ({
      name: "ratios",
      rows,
      columns: [
        CELL,
        number("ratio", "Ratio", ratio),
        number("low", "From", ratio, "95 %"),
        number("high", "To", ratio, "95 %"),
        VERDICT,
        number("floor", "Noise floor", percent),
      ],
    }),
  });
  return [chart, note];
}

/* How far two copies of the baseline may differ, as a share; null where that is unknown. */
function floorOf(block) {
  const [, low, high] = block.floor ?? [];
  return known(low) && known(high) ? Math.max(1 / low, high) - 1 : null;
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

const stepOf = (cell) => ({ value: cell.step, low: cell.step_low, high: cell.step_high });
const memoryOf = (cell) => ({ value: cell.memory });
const mostMemory = (cells) => Math.max(0, ...cells.map((cell) => cell.memory ?? 0));
const rateOf = (cell) => ({
  value: cell.rate,
  // A longer step is a lower rate.
  low: known(cell.rate) ? (cell.rate * cell.step) / cell.step_high : null,
  high: known(cell.rate) ? (cell.rate * cell.step) / cell.step_low : null,
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
        text: inSeconds,
      }),
      draw(
        "efficiency",
        "Parallel efficiency (higher is better)",
        (cell) => efficiency.get(cell.number),
        {
          axis: { format: ".0%" },
          lines: devices.map((x) => ({ kind: "ideal", x, value: 1 })),
          text: percent,
        },
      ),
      draw("rate", `Throughput, ${cells[0].unit} a second`, rateOf, {
        axis: { format: "~s" },
        log: logarithmic,
        text: inPlain,
      }),
      draw("memory", "Memory a device, as planned", memoryOf, {
        axis: bytesAxis(mostMemory(cells)),
        text: bytes,
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
  const best = Math.min(...first.map((cell) => cell.step));
  return devices.map((x) => ({
    kind: "ideal",
    x,
    value: kind === "strong" ? (best * devices[0]) / x : best,
  }));
}

/* The least time that communication alone takes on each mesh; empty if it is known of one only. */
function communicationBound(cells, devices) {
  const least = devices.flatMap((x) => {
    const known = cells.filter((cell) => cell.of.devices === x && cell.communication > 0);
    if (!known.length) return [];
    const value = Math.min(...known.map((cell) => cell.communication));
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
        text: inPlain,
      }),
      draw("memory", "Memory a device, as planned", memoryOf, {
        axis: bytesAxis(mostMemory(cells)),
        text: bytes,
      }),
    ),
  ];
}

/* What a heatmap can show: title, figure of a cell, its text, and what is better. */
const METRICS = {
  ratio: ["ratio to the baseline", (cell) => cell.ratio, ratio, "ratio"],
  step: ["step time", (cell) => cell.step, inSeconds, "less"],
  rate: ["throughput", (cell) => cell.rate, inPlain, "more"],
  memory: ["memory a device", (cell) => cell.memory, bytes, "less"],
  compiling: ["compile time", (cell) => cell.compiling, seconds, "less"],
  wire: ["bytes sent a device", (cell) => cell.wire, bytes, "less"],
  mfu: ["MFU", (cell) => cell.mfu, percent, "more"],
};
const MEANING = {
  ratio:
    "Blue is faster than the baseline, orange slower; the strongest colours are 1.5 times and more.",
  less: "The less, the bluer; each step of colour is a ratio.",
  more: "The more, the bluer; each step of colour is a ratio.",
};
const SHORT = { ok: MISSING, unsupported: "n/a", implausible: "?" };
const FIELD = { width: 62, height: 26 };

function heatmap(target) {
  const all = byPlace(selection());
  const timed = all.filter((cell) => cell.status === "ok");
  const names = typicalOrder(
    timed.map((cell) => ({ name: cell.name, place: cell.block, step: cell.step })),
    (row) => row.step,
  );
  const never = unique(all.map((cell) => cell.name)).filter((name) => !names.includes(name));
  const byName = names.flatMap((name) => all.filter((cell) => cell.name === name));
  const [cells, note] = panelled(byName, "heatmap", "implementations", (cell) => cell.name);
  const metrics = Object.entries(METRICS).filter(([, [, value]]) =>
    cells.some((cell) => known(value(cell)) && !(value === METRICS.ratio[1] && cell.isBaseline)),
  );
  if (!metrics.length) return [nothing("No cell has a figure.")];
  const metric = metrics.find(([key]) => key === chosen("metric"))?.[0] ?? metrics[0][0];
  const [title, value, text, better] = METRICS[metric];
  const shade = shading(
    cells.map(value).filter((found) => found > 0),
    better,
  );
  const rows = cells.map((cell) => {
    const found = value(cell);
    return {
      cell: cell.number,
      name: cell.name,
      mesh: cell.of.mesh,
      batch: cell.of.batch,
      status: cell.status,
      figure: found,
      colour: found > 0 ? heat(shade(found)) : "transparent",
      label: known(found) ? text(found) : (SHORT[cell.status] ?? cell.status),
    };
  });
  const meshes = unique(byPlace(cells).map((cell) => cell.of.mesh));
  const sizes = ascending(rows.map((row) => row.batch));
  const columns = across(target, Math.max(meshes.length * FIELD.width, 80) + 70);
  return [
    choices(
      selector(
        "Figure",
        "metric",
        metrics.map(([key, [name]]) => [key, name]),
        metric,
        "heatmap",
      ),
    ),
    figure({
      title: `Heatmap of ${title}`,
      caption: `A field is a cell: the mesh across, the global batch down. ${MEANING[better]}`,
      spec: heatmapChart(rows, { meshes, batches: sizes, names, columns }),
      table: () => ({
        name: `heatmap-${metric}`,
        rows,
        columns: [
          CELL,
          { key: "mesh", title: "Mesh", filter: true },
          { ...number("batch", "Batch"), filter: true },
          number("figure", title, text),
          { key: "status", title: "Status", filter: true },
        ],
      }),
    }),
    note,
    never.length ? nothing(`Without a time everywhere: ${never.join(", ")}.`) : "",
  ];
}

/* How good a figure is, from -1 to 1: ratios against 1, others among those that there are. */
function shading(values, better) {
  if (better === "ratio") return (found) => Math.log(found) / Math.log(FARTHEST);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const span = Math.log(most / least) || 1;
  return (found) =>
    better === "less" ? -Math.log(most / found) / span : -Math.log(found / least) / span;
}

function breakdown(target) {
  const traced = byPlace(selection()).filter((cell) => cell.traced);
  if (!traced.length) {
    return [nothing("Nothing was traced here: --profile records where a step's time goes.")];
  }
  const [shown, note] = panelled(traced, "breakdown", "blocks", blockOf);
  const share = chosen("bars") === "share";
  const rows = shown.flatMap((cell) =>
    PARTS.map(([part, title], place) => ({
      cell: cell.number,
      name: cell.name,
      place: cell.of.place,
      part,
      what: title,
      number: place,
      seconds: cell.traced.parts[part],
      whole: Object.values(cell.traced.parts).reduce((sum, spent) => sum + spent, 0),
    })),
  );
  const columns = columnsFor(
    target,
    300,
    rows.map((row) => row.place),
    LABELS,
  );
  const width = panelWidth(target, columns, LABELS, 420);
  return [
    choices(
      selector(
        "Bars",
        "bars",
        [
          ["", "time"],
          ["share", "share of the step"],
        ],
        chosen("bars"),
        "breakdown",
      ),
    ),
    figure({
      title: "Where a step's time goes",
      caption:
        "Means over devices and over the traced steps of median length, in which every step is " +
        "waited for.",
      spec: partsChart(rows, { columns, share, width }),
      table: () => ({
        name: "breakdown",
        rows: rows.filter((row) => row.seconds > 0),
        columns: [
          CELL,
          { key: "what", title: "Part", filter: true },
          number("seconds", "Time", inSeconds),
        ],
      }),
    }),
    note,
  ];
}

function roofline(target) {
  const cells = byPlace(selection()).filter(
    (cell) => known(cell.achieved) && cell.intensity > 0 && known(cell.of.matmul),
  );
  if (!cells.length) {
    return [nothing("No cell has both measured ceilings and the compiler's count of its work.")];
  }
  const panelOf = (cell) => `${cell.of.devices} device${cell.of.devices > 1 ? "s" : ""}`;
  const rows = cells.map((cell) => ({
    cell: cell.number,
    name: cell.name,
    panel: panelOf(cell),
    x: cell.intensity,
    y: cell.achieved,
    share: cell.roof,
  }));
  const intensities = rows.map((row) => row.x);
  const blocks = new Map(cells.map((cell) => [panelOf(cell), cell.of]));
  const roofs = [...blocks].flatMap(([panel, { matmul, bandwidth }]) => {
    const ridge = matmul / bandwidth;
    const ends = [Math.min(...intensities, ridge) / 2, ridge, Math.max(...intensities, ridge) * 2];
    return ends.map((x) => ({ roof: true, panel, x, y: Math.min(matmul, x * bandwidth) }));
  });
  const columns = columnsFor(
    target,
    260,
    rows.map((row) => row.panel),
    60,
  );
  const width = panelWidth(target, columns, 60, 360);
  const chart = figure({
    title: "Roofline",
    caption:
      "The roof is what a device reached in this run with nothing else to do, while all of the " +
      "mesh worked: matrix products (flat) and memory (slanted). FLOP and bytes are the " +
      "compiler's count, in which every operation reads its operands from memory: a cell above " +
      "the slanted roof has them in caches, one above the flat roof had a calmer moment than the " +
      "ceiling.",
    spec: rooflineChart([...roofs, ...rows], { columns, width }),
    table: () => ({
      name: "roofline",
      rows,
      columns: [
        CELL,
        number("x", "Intensity", significantOrMissing, "FLOP a byte"),
        number("y", "Achieved", (value) => si(value, "FLOP/s"), "a device"),
        number("share", "Of the roof", percent),
      ],
    }),
  });
  return [chart];
}

const EARLY = 40; // Steps in which right curves agree to rounding: see bench/analyse/loss_curves.py.

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
          { key: "place", title: "Block", filter: true },
          NAME,
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
      text: significantOrMissing,
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
      text: scientific,
      axisTitle: "relative difference",
      format: ".0e",
      log: true,
      lines: places.map((place) => ({ place, y: tolerance })),
    }),
    note,
    makeTable({
      title: "Largest difference from the reference's loss",
      name: "loss-differences",
      rows: every.filter((curve) => known(curve.cell) || curve.yardstick),
      columns: [
        { key: "place", title: "Block", filter: true },
        NAME,
        number("largest", "Largest difference", scientific, "relative"),
        number("early", `In the first ${EARLY}`, scientific, "steps"),
        number("beyond", "Above the tolerance", (step) => step ?? "never", "from step"),
        ...(every.some((curve) => curve.reason) ? [{ key: "reason", title: "Ended early" }] : []),
      ],
    }),
  ].filter(Boolean);
}
