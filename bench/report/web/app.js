// The page: controls, charts that are drawn when they come into view, tables, and the cell in focus.

const byId = (id) => document.getElementById(id);
const drawn = new Map();  // Views of charts, by the element they are in.
const pending = new Set();  // Groups of charts that are to be drawn.
const embedding = new Set();  // Charts that are being drawn.

// Charts.

async function embed(target, spec) {
  drawn.get(target)?.finalize();
  drawn.delete(target);
  const { view } = await vegaEmbed(target, { ...spec, config: config() }, {
    mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, tooltip: false,
  });
  drawn.set(target, view);
  view.addEventListener("pointermove", (event, item) => peek(event, item));
  view.addEventListener("pointerout", (event) => peek(event, null));
  view.addEventListener("click", (_event, item) => {
    const cell = CELLS[item?.datum?.cell];
    if (cell) open(cell);
  });
}

/* A chart with its name, what it shows, and the numbers behind it. */
function figure({ title, caption, spec, table }) {
  const target = element("div", { class: "chart", "aria-hidden": "true" });
  const made = element("figure", {},
    element("div", { class: "wide", tabindex: "0", role: "img", "aria-label": `${title}. The table below has its numbers.` }, target),
    caption ? element("figcaption", {}, caption) : "");
  if (table) {
    const details = element("details", {}, element("summary", {}, "The numbers behind this chart"));
    details.addEventListener("toggle", () => {
      if (details.open && details.children.length === 1) details.append(makeTable({ title, ...table() }));
    });
    made.append(details);
  }
  const drawing = embed(target, spec).finally(() => embedding.delete(drawing));
  embedding.add(drawing);
  return made;
}

const widthOf = (group) => group.clientWidth || 900;
const across = (group, each) => Math.max(1, Math.min(4, Math.floor(widthOf(group) / each)));

// The cell under the pointer.

const tip = element("div", { class: "tip", hidden: true, "aria-hidden": "true" });

function peek(event, item) {
  const cell = CELLS[item?.datum?.cell];
  tip.hidden = !cell;
  if (!cell) return;
  tip.replaceChildren(element("b", {}, cell.name), element("span", {}, cell.of.place),
    ...summaryOf(cell).map((line) => element("span", {}, line)));
  const { clientWidth, clientHeight } = document.documentElement;
  tip.style.left = `${Math.min(event.clientX + 14, clientWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, clientHeight - tip.offsetHeight - 8)}px`;
  focusOn(cell);
}

function summaryOf(cell) {
  if (cell.status !== "ok") return [`${cell.status}: ${cell.reason}`];
  const lines = [`${si(cell.step, "s")} a step (${si(cell.step_low, "s")} to ${si(cell.step_high, "s")})`];
  if (cell.isBaseline) lines.push("the baseline");
  else if (known(cell.ratio)) {
    const ends = interval(cell.ratio_low, cell.ratio_high, ratio);
    lines.push(`${ratio(cell.ratio)} of the baseline${ends ? ` (${ends})` : ""}: ${cell.verdict ?? "no verdict"}`);
  }
  return lines;
}

let inFocus = null;

function focusOn(cell) {
  if (inFocus === cell) return;
  inFocus = cell;
  for (const view of drawn.values()) {
    // Not every chart shows single cells.
    if (Object.hasOwn(view.getState({ signals: (name) => name === "focus" }).signals ?? {}, "focus")) {
      view.signal("focus", cell.number).runAsync();
    }
  }
  const panel = byId("peek");
  panel.replaceChildren(
    element("h4", {}, cell.name),
    element("p", {}, cell.of.place),
    ...summaryOf(cell).map((line) => element("p", {}, line)),
    cell.traced?.why ? element("p", {}, cell.traced.why) : "",
    element("p", {}, cellLink(cell, "all about this cell"),
      cell.traced ? " \u00b7 " : "", cell.traced ? traceLink(cell) : ""));
}

const traceLink = (cell) => element("a", { href: cell.traced.viewer }, "its trace");

// What is shown.

const GROUPS = { ratios, curves, batches, heatmap, breakdown, roofline };

function selection() {
  const subject = subjectNumber();
  const off = hidden();
  return CELLS.filter((cell) => cell.of.subject === subject && !off.has(cell.name) &&
    (!chosen("mesh") || cell.of.mesh === chosen("mesh")) &&
    (!chosen("batch") || String(cell.of.batch) === chosen("batch")));
}

const subjectNumber = () => Math.max(0, DATA.subjects.indexOf(chosen("subject")));
const hidden = () => new Set(chosen("off").split("/").filter(Boolean));  // No name of a file has one.
const byPlace = (cells) => [...cells].sort((a, b) => a.block - b.block || a.implementation - b.implementation);

const CELL_COLUMN = { key: "cell", title: "Cell", value: (row) => CELLS[row.cell].full,
  node: (row) => cellLink(CELLS[row.cell], CELLS[row.cell].full) };
const NAME = { key: "name", title: "Implementation", filter: true };

const cellLink = (cell, text) => element("a", {
  href: address("cell", { subject: cell.of.subjectName, cell: cell.full }),
  onclick: (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open(cell);
  },
}, text);

const MOST_PANELS = 12;

/* The cells of at most so many panels, a panel a `key`, and what is said of the others. */
function panelled(cells, group, what, key) {
  const panels = [...new Set(cells.map(key))];
  if (chosen("all") === group || panels.length <= MOST_PANELS) return [cells, ""];
  const shown = new Set(panels.slice(0, MOST_PANELS));
  return [cells.filter((cell) => shown.has(key(cell))),
    element("p", { class: "note" }, `${panels.length - MOST_PANELS} more ${what} are not drawn: choose fewer above, or `,
      element("button", { type: "button", onclick: () => { choose({ all: group }); redraw([group]); } }, "draw all"))];
}

const blockOf = (cell) => cell.block;

function ratios(group) {
  const compared = byPlace(selection()).filter((cell) => known(cell.ratio) && !cell.isBaseline);
  if (!compared.length) return [nothing("No ratio to a baseline here.")];
  const [shown, note] = panelled(compared, "ratios", "blocks", blockOf);
  const rows = shown.map((cell) => {
    const [, low, high] = cell.of.floor ?? [];
    const width = known(low) ? Math.max(-Math.log(low), Math.log(high)) : null;
    return { cell: cell.number, name: cell.name, place: cell.of.place, ratio: cell.ratio,
      low: cell.ratio_low, high: cell.ratio_high, paired: cell.paired, verdict: cell.verdict,
      floor_low: known(width) ? Math.exp(-width) : 1, floor_high: known(width) ? Math.exp(width) : 1 };
  });
  const { margin } = shown[0].of;
  const columns = Math.min(across(group, 340), new Set(rows.map((row) => row.place)).size);
  return [figure({
    title: "Step time over the baseline's",
    caption: `Step time over the baseline's: left of 1 is faster. Lines are 95 % intervals; the dashed lines are the margin of ${percent(margin)}. The shaded band is the noise floor: how far two copies of the baseline may differ in that block. A hollow mark was measured apart and has no interval.`,
    spec: forestChart(rows, { columns, margin, width: Math.min(300, Math.max(110, widthOf(group) / columns - 200)) }),
    table: () => ({ name: "ratios", rows, columns: [CELL_COLUMN, NAME, { key: "ratio", title: "Ratio", text: ratio, align: "right" },
      { key: "low", title: "From", note: "95 %", text: ratio, align: "right" }, { key: "high", title: "To", note: "95 %", text: ratio, align: "right" },
      { key: "verdict", title: "Verdict", filter: true },
      { key: "floor_high", title: "Noise floor", text: (value) => percent(value - 1), align: "right" }] }),
  }), note];
}

function curves(group) {
  const own = DATA.curves.filter((curve) => curve.subject === subjectNumber());
  if (!own.length) return [nothing("A curve needs at least two meshes of one kind, at one batch in all (strong scaling) or on each device (weak scaling).")];
  const curve = own.find((one) => one.slug === chosen("curve")) ?? own[0];
  const off = hidden();
  const points = curve.cell.map((number, index) => {
    const cell = CELLS[number];
    return { cell: number, name: cell.name, x: cell.of.devices, over: cell.of.oversubscribed,
      mesh: cell.of.mesh, step: cell.step, step_low: cell.step_low, step_high: cell.step_high, memory: cell.memory, rate: cell.rate,
      communication: cell.communication,
      efficiency: curve.efficiency[index], efficiency_low: curve.efficiency_low[index], efficiency_high: curve.efficiency_high[index] };
  }).filter((point) => !off.has(point.name));
  if (!points.length) return [nothing("No implementation is chosen.")];
  const log = chosen("axes") !== "linear";
  const devices = [...new Set(points.map((point) => point.x))].sort((a, b) => a - b);
  const best = Math.min(...points.filter((point) => point.x === devices[0]).map((point) => point.step));
  const ideal = devices.map((x) => ({ kind: "ideal", x, value: curve.kind === "strong" ? best * devices[0] / x : best }));
  const least = devices.map((x) => ({ kind: "communication", x, value: Math.min(...points.filter((point) => point.x === x && point.communication > 0).map((point) => point.communication)) }))
    .filter((line) => Number.isFinite(line.value));
  const below = devices.filter((x) => !points.some((point) => point.x === x && point.over));
  const over = below.length === devices.length ? null : below.length
    ? (below.at(-1) * devices.find((x) => x > below.at(-1))) ** 0.5 : devices[0] / 1.2;
  const width = Math.min(380, widthOf(group) - 90);
  const rowsOfFigure = (key) => points.filter((point) => known(point[key])).map((point) => ({ cell: point.cell, name: point.name, x: point.x,
    value: point[key], low: point[`${key}_low`] ?? point[key], high: point[`${key}_high`] ?? point[key] }));
  const one = (key, title, axis, more) => {
    const rows = rowsOfFigure(key);
    return rows.length && figure({ title: `${title}, ${curve.title}`,
      spec: curveChart(rows, { title, xTitle: "devices", axis, logX: log, log: false, width, over, ...more }),
      table: () => ({ name: `${curve.slug}-${key}`, rows, columns: [CELL_COLUMN, NAME, { key: "x", title: "Devices", align: "right" },
        { key: "value", title, align: "right", text: more.text }, { key: "low", title: "Lower quartile", align: "right", text: more.text },
        { key: "high", title: "Upper quartile", align: "right", text: more.text }] }) });
  };
  const inSeconds = (value) => si(value, "s");
  return [
    element("div", { class: "choices" },
      selector("Curve", "curve", own.map((each) => [each.slug, each.title]), curve.slug, "curves"),
      selector("Axes", "axes", [["", "logarithmic"], ["linear", "linear"]], chosen("axes"), "curves")),
    element("div", { class: "panels" },
      one("step", "Step time (lower is better)", timeAxis(null), { log, lines: [...ideal, ...(least.length > 1 ? least : [])], text: inSeconds }),
      one("efficiency", "Parallel efficiency (higher is better)", { format: ".0%" }, { text: percent, lines: devices.map((x) => ({ kind: "ideal", x, value: 1 })) }) || "",
      one("rate", `Throughput, ${CELLS[points[0].cell].unit} a second`, { format: "~s" }, { log, text: (value) => si(value, "") }),
      one("memory", "Memory a device, as planned", BYTES_AXIS, { text: bytes }) || ""),
    element("p", { class: "note" }, "Points are medians, bars quartiles. Efficiency is against the same implementation on the smallest mesh. Dashed: ideal, from the fastest there.",
      least.length > 1 ? " Dotted: what communication alone would take, at the rate of an all-reduce that was measured in this run, for the implementation that sends least." : "",
      known(over) ? " Shaded: more devices than cores, which shows what dispatch and communication cost, not how the step scales." : ""),
  ];
}

function batches(group) {
  const cells = byPlace(selection()).filter((cell) => cell.status === "ok");
  const meshes = [...new Set(cells.map((cell) => cell.of.mesh))].filter((mesh) =>
    new Set(cells.filter((cell) => cell.of.mesh === mesh).map((cell) => cell.of.batch)).size > 1);
  if (!meshes.length) return [nothing("A curve over batch sizes needs at least two of them on one mesh.")];
  const mesh = meshes.includes(chosen("along")) ? chosen("along") : meshes[0];
  const own = cells.filter((cell) => cell.of.mesh === mesh);
  const width = Math.min(380, widthOf(group) - 90);
  const one = (key, title, axis, text, log) => {
    const rows = own.filter((cell) => known(cell[key])).map((cell) => {
      const low = key === "rate" ? cell.rate * cell.step / cell.step_high : cell[key];
      const high = key === "rate" ? cell.rate * cell.step / cell.step_low : cell[key];
      return { cell: cell.number, name: cell.name, x: cell.of.batch, value: cell[key], low, high };
    });
    return rows.length ? figure({ title: `${title} against the batch, ${mesh}`,
      spec: curveChart(rows, { title, xTitle: "global batch", axis, log, logX: true, width }),
      table: () => ({ name: `batches-${key}`, rows, columns: [CELL_COLUMN, NAME, { key: "x", title: "Batch", align: "right" },
        { key: "value", title, align: "right", text }, { key: "low", title: "Lower", align: "right", text }, { key: "high", title: "Upper", align: "right", text }] }) }) : "";
  };
  return [
    element("div", { class: "choices" }, selector("Mesh", "along", meshes.map((each) => [each, each]), mesh, "batches")),
    element("div", { class: "panels" },
      one("rate", `Throughput, ${own[0].unit} a second`, { format: "~s" }, (value) => si(value, ""), true),
      one("memory", "Memory a device, as planned", BYTES_AXIS, bytes, false)),
  ];
}

const METRICS = {
  ratio: ["ratio to the baseline", (cell) => cell.ratio, ratio, "ratio"],
  step: ["step time", (cell) => cell.step, (value) => si(value, "s"), "less"],
  rate: ["throughput", (cell) => cell.rate, (value) => si(value, ""), "more"],
  memory: ["memory a device", (cell) => cell.memory, bytes, "less"],
  compiling: ["compile time", (cell) => cell.compiling, seconds, "less"],
  wire: ["bytes sent a device", (cell) => cell.wire, bytes, "less"],
  mfu: ["MFU", (cell) => cell.mfu, percent, "more"],
};

const SHORT = { ok: MISSING, unsupported: "n/a", "out of memory": "oom" };

function heatmap(group) {
  const chosenCells = byPlace(selection());
  const timed = new Set(chosenCells.filter((cell) => cell.status === "ok").map((cell) => cell.name));
  const [cells, note] = panelled(chosenCells.filter((cell) => timed.has(cell.name)), "heatmap", "implementations", (cell) => cell.name);
  const never = [...new Set(chosenCells.map((cell) => cell.name))].filter((name) => !timed.has(name));
  if (!cells.length) return [nothing("No cell has a figure.")];
  const metrics = Object.entries(METRICS).filter(([, [, value]]) => cells.some((cell) => known(value(cell))));
  if (!metrics.length) return [nothing("No cell has a figure.")];
  const metric = metrics.find(([key]) => key === chosen("metric"))?.[0] ?? metrics[0][0];
  const [title, value, text, kind] = METRICS[metric];
  const rows = cells.map((cell) => {
    const found = value(cell);
    return { cell: cell.number, name: cell.name, mesh: cell.of.mesh, batch: cell.of.batch, status: cell.status,
      figure: found, value: known(found) && found > 0 ? Math.log2(found) : null,
      label: known(found) ? text(found) : SHORT[cell.status] ?? cell.status };
  });
  const meshes = [...new Set(rows.map((row) => row.mesh))];
  const sizes = [...new Set(rows.map((row) => row.batch))].sort((a, b) => a - b);
  return [
    element("div", { class: "choices" }, selector("Figure", "metric", metrics.map(([key, [name]]) => [key, name]), metric, "heatmap")),
    figure({
      title: `Heatmap of ${title}`,
      caption: "A field is a cell: the mesh across, the global batch down. Blue is better, orange is worse. A click shows all about the cell.",
      spec: heatmapChart(rows, { meshes, batches: sizes, kind,
        columns: across(group, Math.max(meshes.length * 62, 80) + 80) }),
      table: () => ({ name: `heatmap-${metric}`, rows, columns: [CELL_COLUMN, NAME, { key: "mesh", title: "Mesh", filter: true },
        { key: "batch", title: "Batch", align: "right", filter: true }, { key: "figure", title, text, align: "right" }, { key: "status", title: "Status", filter: true }] }),
    }),
    note, never.length ? nothing(`Without a time everywhere: ${never.join(", ")}.`) : "",
  ];
}

function breakdown(group) {
  const traced = byPlace(selection()).filter((cell) => cell.traced);
  if (!traced.length) return [nothing("Nothing was traced here: --profile records where a step's time goes.")];
  const [shown, note] = panelled(traced, "breakdown", "blocks", blockOf);
  const share = chosen("bars") === "share";
  const rows = shown.flatMap((cell) => PARTS.map(([part, title], number) => ({ cell: cell.number, name: cell.name,
    place: cell.of.place, part, what: title, number, seconds: cell.traced.parts[part] ?? 0 })));
  const columns = Math.min(across(group, 420), new Set(rows.map((row) => row.place)).size);
  return [
    element("div", { class: "choices" }, selector("Bars", "bars", [["", "time"], ["share", "share of the step"]], chosen("bars"), "breakdown")),
    figure({
      title: "Where a step's time goes",
      caption: "Means over devices and over the traced steps of median length, in which every step is waited for.",
      spec: partsChart(rows, { columns, share, width: Math.min(420, Math.max(140, widthOf(group) / columns - 210)) }),
      table: () => ({ name: "breakdown", rows: rows.filter((row) => row.seconds > 0), columns: [CELL_COLUMN, NAME,
        { key: "what", title: "Part", filter: true }, { key: "seconds", title: "Time", text: (value) => si(value, "s"), align: "right" }] }),
    }), note,
  ];
}

function roofline(group) {
  const cells = byPlace(selection()).filter((cell) => known(cell.achieved) && cell.intensity > 0 && known(cell.of.matmul));
  if (!cells.length) return [nothing("No cell has both measured ceilings and the compiler's count of its work.")];
  const panel = (cell) => `${cell.of.devices} device${cell.of.devices > 1 ? "s" : ""}`;
  const reach = cells.map((cell) => cell.intensity);
  const rows = cells.map((cell) => ({ cell: cell.number, name: cell.name, panel: panel(cell), x: cell.intensity, y: cell.achieved, share: cell.roof }));
  const roofs = [...new Map(cells.map((cell) => [panel(cell), cell.of])).entries()].flatMap(([name, block]) => {
    const ridge = block.matmul / block.bandwidth;
    const xs = [Math.min(...reach, ridge) / 2, ridge, Math.max(...reach, ridge) * 2];
    return xs.map((x) => ({ roof: true, panel: name, x, y: Math.min(block.matmul, x * block.bandwidth) }));
  });
  const columns = Math.min(across(group, 330), new Set(rows.map((row) => row.panel)).size);
  return [figure({
    title: "Roofline",
    caption: "The roof is what a device reached in this run with nothing else to do, while all of the mesh worked: matrix products (flat) and copies through memory (slanted). FLOP and bytes are the compiler's count, in which every operation reads its operands from memory: a cell above the slanted roof takes them from caches.",
    spec: rooflineChart([...roofs, ...rows], { columns, width: Math.min(360, Math.max(180, widthOf(group) / columns - 80)) }),
    table: () => ({ name: "roofline", rows, columns: [CELL_COLUMN, NAME, { key: "x", title: "Intensity", note: "FLOP a byte", text: significantOrMissing, align: "right" },
      { key: "y", title: "Achieved", note: "a device", text: (value) => si(value, "FLOP/s"), align: "right" },
      { key: "share", title: "Of the roof", text: percent, align: "right" }] }),
  })];
}

const significantOrMissing = (value) => (known(value) ? significant(value) : MISSING);
const nothing = (text) => element("p", { class: "note" }, text);

// One cell.

/* Choices that make no sense for another subject. */
const OF_SUBJECT = { mesh: "", batch: "", off: "", curve: "", along: "", cell: "", all: "" };

function open(cell) {
  const other = cell.of.subject !== subjectNumber();
  choose({ ...(other ? OF_SUBJECT : {}), subject: cell.of.subjectName, cell: cell.full }, "cell");
  if (other) {
    syncControls();
    redraw();
  }
  drawCell();
  byId("cell").scrollIntoView();
}

function currentCell() {
  const asked = CELL_OF.get(chosen("cell"));
  if (asked) return asked;
  const own = CELLS.filter((cell) => cell.of.subject === subjectNumber());
  return own.find((cell) => cell.traced?.main) ?? own.find((cell) => cell.verdict && cell.paired) ?? own[0] ?? CELLS[0];
}

function drawCell() {
  const target = byId("one");
  const cell = currentCell();
  if (!cell) return;
  const block = cell.of;
  const width = Math.min(420, widthOf(target) - 80);
  const facts = [
    ["Step time", known(cell.step) ? `${si(cell.step, "s")} (${si(cell.step_low, "s")} to ${si(cell.step_high, "s")}, quartiles)` : ""],
    ["Latency", known(cell.latency) ? `${si(cell.latency, "s")} (${si(cell.latency_low, "s")} to ${si(cell.latency_high, "s")})` : ""],
    ["Throughput", known(cell.rate) ? `${si(cell.rate, "")} ${cell.unit} a second`.replace("  ", " ") : ""],
    ["To baseline", cell.isBaseline ? "it is the baseline" : known(cell.ratio) ? `${ratio(cell.ratio)} ${interval(cell.ratio_low, cell.ratio_high, ratio)}` : ""],
    ["Verdict", [verdictOf(cell), whyUndecided(cell)].filter(Boolean).join(", ")],
    ["Compile", known(cell.compiling) ? `${seconds(cell.compiling)}: trace ${seconds(cell.trace)}, lower ${seconds(cell.lower)}, compile ${seconds(cell.compile)}${cell.cached ? ", cached" : ""}` : ""],
    ["Memory a device", known(cell.memory) ? `${bytes(cell.memory)} planned: arguments ${bytes(cell.arguments)}, outputs ${bytes(cell.outputs)} (${bytes(cell.reused)} reused), temporaries ${bytes(cell.temporaries)}${known(cell.high_water) ? `; ${bytes(cell.high_water)} measured` : ""}` : ""],
    ["Sends a step", cell.wire === 0 ? "nothing" : known(cell.wire) ? `${bytes(cell.wire)} a device${cell.collectives ? `: ${cell.collectives}` : ""}` : ""],
    ["Work", known(cell.compiled_flops) ? `${si(cell.compiled_flops, "FLOP")} compiled${known(cell.traced_flops) ? `, ${si(cell.traced_flops, "FLOP")} traced` : ""}, ${si(cell.model_flops, "FLOP")} by the model; ${bytes(cell.accessed)} accessed` : ""],
    ["Of the roof", known(cell.roof) ? percent(cell.roof) : ""],
    ["MFU", known(cell.mfu) ? percent(cell.mfu) : ""],
    ["Bubble", known(cell.bubble) && cell.bubble > 0 ? `${percent(cell.bubble)} by its schedule${known(cell.idle) ? `, ${percent(cell.idle)} measured with the update` : ""}` : ""],
    ["Proof", known(cell.proof) ? `largest error ${percent(cell.proof)} of what is allowed` : ""],
  ].filter(([, text]) => text);
  const parts = [
    element("h3", {}, cell.full),
    cell.status === "ok" ? "" : element("p", { class: "reason" }, element("b", {}, `${cell.status}: `), cell.reason),
    ...[cell.traced?.why, cell.traced?.why_fastest].filter(Boolean).map((text) => element("p", {}, text)),
    element("dl", { class: "facts" }, ...facts.map(([name, text]) => element("div", {}, element("dt", {}, name), element("dd", {}, text)))),
    element("p", {}, ...(cell.traced ? [traceLink(cell), " in TensorBoard (nox -s tensorboard) \u00b7 "] : []), "again: ", element("code", {}, commandOf(cell)), " ",
      copyButton(() => commandOf(cell))),
  ];
  const samples = distribution(cell, width);
  if (samples) parts.push(samples);
  if (cell.traced?.causes?.length) {
    parts.push(element("h4", {}, `What its step does longer, or less, than ${IMPLEMENTATIONS[block.baseline]}'s`), makeTable({
      title: `Causes, ${cell.full}`, name: "causes", rows: cell.traced.causes, columns: [
        { key: "what", title: "Cause", value: (row) => row[0], detail: (row) => row[5] },
        { key: "difference", title: "Difference", value: (row) => row[1], text: (value) => `${value > 0 ? "+" : ""}${si(value, "s")}`, align: "right",
          detail: (row) => (cell.traced.whole ? percent(row[1] / cell.traced.whole) : "") },
        { key: "here", title: cell.name, note: "as traced", value: (row) => row[2], text: (value) => si(value, "s"), align: "right" },
        { key: "there", title: IMPLEMENTATIONS[block.baseline], note: "as traced", value: (row) => row[3], text: (value) => si(value, "s"), align: "right" },
        { key: "source", title: "Source", value: (row) => row[4] }] }));
  }
  if (block.facts.length) {
    parts.push(element("h4", {}, `Its block, ${block.place}`), element("ul", { class: "remarks" },
      ...block.facts.map((text) => element("li", {}, text))));
  }
  for (const view of target.querySelectorAll(".chart")) {
    drawn.get(view)?.finalize();
    drawn.delete(view);
  }
  target.replaceChildren(...parts.filter(Boolean));
}

function distribution(cell, width) {
  const { samples, launch, margin, baseline } = cell.of;
  const own = samples[cell.implementation];
  if (!own || cell.status !== "ok") return null;
  const arms = [[cell.name, own, colourOf(cell.implementation)]];
  const other = samples[baseline];
  if (!cell.isBaseline && other) arms.push([`${IMPLEMENTATIONS[baseline]} (baseline)`, other, "var(--ink)"]);
  if (samples.twin) arms.push([`its second copy`, samples.twin, "var(--muted)"]);
  // Workers that did not have the cell do not count.
  const workers = [...new Set(launch.filter((_, number) => known(own[number])))];
  const rows = arms.flatMap(([name, values]) => values.map((value, number) => ({ name, round: number + 1, launch: workers.indexOf(launch[number]) + 1, value: known(value) ? value / 1e6 : null })))
    .filter((row) => known(row.value) && row.launch);
  const figures = [figure({
    title: `Distribution of step times, ${cell.full}`,
    spec: distributionChart(rows, { width, title: "Distribution of step times", names: arms.map(([name]) => name), colours: arms.map(([, , colour]) => colour) }),
    table: () => ({ name: "samples", rows, columns: [{ key: "name", title: "Arm", filter: true }, { key: "launch", title: "Launch", align: "right", filter: true },
      { key: "round", title: "Round", align: "right" }, { key: "value", title: "Step time", text: (value) => si(value, "s"), align: "right" }] }),
  })];
  if (!cell.isBaseline && other) {
    const paired = own.flatMap((value, number) => (known(value) && known(other[number])
      ? [{ launch: workers.indexOf(launch[number]) + 1, ratio: value / other[number] }] : []))
      .map((row, number) => ({ round: number + 1, ...row }));
    if (paired.length) {
      figures.push(figure({ title: `Ratio round by round, ${cell.full}`,
        spec: driftChart(paired, { width, margin, title: "Is the ratio steady?" }),
        table: () => ({ name: "rounds", rows: paired, columns: [{ key: "round", title: "Round", align: "right" }, { key: "launch", title: "Launch", align: "right" },
          { key: "ratio", title: "Ratio", text: ratio, align: "right" }] }) }));
    }
  }
  const order = cell.of.order.map(([by, size, sure]) => `${by} ${percent(size)}${sure ? "" : " (no more than chance)"}`);
  return element("div", {}, element("div", { class: "panels" }, ...figures),
    order.length ? element("p", { class: "note" }, `Effects of the order of turns in this block: ${order.join(", ")}. Every arm has every place, and every other before it, about equally often.`) : "");
}

function copyButton(text) {
  const button = element("button", { type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "The browser does not allow it";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  return button;
}

// Tables.

function drawCells() {
  const right = "right";
  const table = {
    sort: chosen("sort"), down: chosen("down") === "1", query: chosen("q"),
    filters: Object.fromEntries([...state.choices].filter(([key]) => key.startsWith("is."))
      .map(([key, value]) => [key.slice(3), value])),
  };
  const changed = () => choose({ sort: table.sort, down: table.down ? "1" : "", q: table.query,
    ...Object.fromEntries(Object.entries(table.filters).map(([key, value]) => [`is.${key}`, value])) }, "cells");
  byId("all").replaceChildren(makeTable({
    title: "All cells", name: `${DATA.run.name}-cells`, rows: CELLS, state: table, changed, search: true,
    columns: [
      { key: "name", title: "Implementation", filter: true, node: (cell) => cellLink(cell, cell.name), detail: (cell) => (cell.apart ? "measured apart" : "") },
      { key: "workload", title: "Workload", value: (cell) => cell.of.subjectName, filter: true },
      { key: "mesh", title: "Mesh", value: (cell) => cell.of.mesh, filter: true },
      { key: "batch", title: "Batch", value: (cell) => cell.of.batch, align: right, filter: true },
      { key: "status", title: "Status", filter: true, detail: (cell) => (cell.reason ?? "").slice(0, 120) },
      { key: "verdict", title: "Verdict", value: verdictOf, filter: true, detail: whyUndecided },
      { key: "ratio", title: "To baseline", note: "ratio, 95 % interval", text: ratio, align: right,
        detail: (cell) => (cell.isBaseline ? "" : interval(cell.ratio_low, cell.ratio_high, ratio)) },
      { key: "step", title: "Step time", note: "median, quartiles", text: (value) => si(value, "s"), align: right, detail: (cell) => interval(cell.step_low, cell.step_high, (value) => si(value, "s")) },
      { key: "latency", title: "Latency", note: "median, quartiles", text: (value) => si(value, "s"), align: right, detail: (cell) => interval(cell.latency_low, cell.latency_high, (value) => si(value, "s")) },
      { key: "rate", title: "Throughput", note: "a second", text: (value) => si(value, ""), align: right, detail: (cell) => (known(cell.rate) ? cell.unit : "") },
      ...(CELLS.some((cell) => cell.traced?.main) ? [{ key: "why", title: "Why", note: "main cause, as traced", value: (cell) => cell.traced?.main ?? null,
        detail: (cell) => (cell.traced?.main ? `${cell.traced.main_s > 0 ? "+" : ""}${si(cell.traced.main_s, "s")}` : "") }] : []),
      { key: "compiling", title: "Compile", note: "trace + lower + compile", text: seconds, align: right,
        detail: (cell) => (known(cell.compiling) ? `${[cell.trace, cell.lower, cell.compile].map((value) => seconds(value).split(NARROW)[0]).join(" + ")}${cell.cached ? " cached" : ""}` : "") },
      { key: "memory", title: "Memory", note: "a device, as planned", text: bytes, align: right, detail: (cell) => (known(cell.high_water) ? `${bytes(cell.high_water)} measured` : "") },
      { key: "wire", title: "Sends", note: "a device and step", text: bytes, align: right, detail: (cell) => cell.collectives },
      { key: "traced_flops", title: "Traced FLOPs", note: "over the model's", value: (cell) => (known(cell.traced_flops) ? cell.traced_flops / cell.model_flops : null), text: significantOrMissing, align: right },
      { key: "compiled_flops", title: "Compiled FLOPs", note: "over the model's", value: (cell) => (known(cell.compiled_flops) ? cell.compiled_flops / cell.model_flops : null), text: significantOrMissing, align: right },
      { key: "roof", title: "Of the roof", note: "measured", text: percent, align: right },
      { key: "mfu", title: "MFU", text: (value) => (known(value) ? percent(value) : "unknown"), align: right },
      { key: "proof", title: "Proof", note: "of the allowed error", text: percent, align: right },
      ...(CELLS.some((cell) => cell.traced) ? [{ key: "viewer", title: "Trace", value: (cell) => cell.traced?.viewer ?? null, node: (cell) => (cell.traced ? traceLink(cell) : null) }] : []),
      { key: "command", title: "Again", value: commandOf, node: (cell) => element("details", { class: "command" }, element("summary", {}, "command"), element("code", {}, commandOf(cell))) },
    ],
  }));
}

function drawEffects() {
  const rows = rowsOf(DATA.effects);
  const section = byId("effects");
  section.hidden = !rows.length;
  if (!rows.length) return;
  byId("changed").replaceChildren(makeTable({ title: "Against the usual", name: "variants", rows, columns: [
    CELL_COLUMN, { ...NAME, value: (row) => CELLS[row.cell].name },
    { key: "ratio", title: "Ratio", text: ratio, align: "right", detail: (row) => interval(row.low, row.high, ratio) },
    { key: "low", title: "From", note: "95 %", text: ratio, align: "right" }, { key: "high", title: "To", note: "95 %", text: ratio, align: "right" },
    { key: "verdict", title: "Verdict", filter: true }] }));
}

function drawProcesses() {
  const rows = BLOCKS.flatMap((block) => block.slow.map(([arm, slowest, often, excess]) =>
    ({ name: IMPLEMENTATIONS[arm], place: `${block.subjectName}, ${block.place}`, slowest, often, excess })));
  byId("processes").hidden = !rows.length;
  if (!rows.length) return;
  byId("slow").replaceChildren(makeTable({ title: "Slowest processes", name: "processes", rows, columns: [
    NAME, { key: "place", title: "Block", filter: true }, { key: "slowest", title: "Slowest process", note: "by rank", align: "right" },
    { key: "often", title: "How often", note: "of the spans", text: percent, align: "right" },
    { key: "excess", title: "Apart", note: "slowest over fastest, median", text: percent, align: "right" }] }));
}

function drawHost() {
  const moments = rowsOf(DATA.timeline);
  const target = byId("timeline");
  if (!moments.length || target.childElementCount) return;
  const width = Math.min(900, widthOf(target) - 80);
  const panel = (title, series, axis, log) => {
    const rows = series.flatMap(([key, what]) => moments.filter((row) => known(row[key]))
      .map((row) => ({ minutes: row.minutes, what, value: log ? row[key] : Math.max(row[key], 0) })));
    return rows.length ? figure({ title, spec: timelineChart(rows, { width, title, axis, log }),
      table: () => ({ name: "timeline", rows, columns: [{ key: "minutes", title: "Minutes", text: significantOrMissing, align: "right" }, { key: "what", title: "What", filter: true },
        { key: "value", title: "Value", text: significantOrMissing, align: "right" }] }) }) : "";
  };
  target.append(
    panel("Step time of the baselines, each against its block's median", [["relative", "baseline"]], { format: "~r" }, true),
    panel("Share of the cores' time that others had", [["foreign", "other processes"], ["steal", "other guests (steal)"]], { format: ".0%" }, false),
    panel("Mean frequency of the cores, MHz", [["mhz", "frequency"]], {}, false));
}

// Controls.

function selector(label, key, options, value, group) {
  const select = element("select", { id: `choose-${key}` }, ...options.map(([option, text]) => element("option", { value: option }, text)));
  select.value = value;
  select.addEventListener("change", () => { choose({ [key]: select.value }); redraw([group]); });
  return element("span", {}, element("label", { for: select.id }, label), " ", select);
}

function fill(select, options, value) {
  select.replaceChildren(...options.map(([option, text]) => element("option", { value: option }, text)));
  select.value = options.some(([option]) => option === value) ? value : options[0]?.[0] ?? "";
}

function syncControls() {
  const subject = subjectNumber();
  const own = BLOCKS.filter((block) => block.subject === subject);
  fill(byId("subject"), DATA.subjects.map((name) => [name, name]), DATA.subjects[subject]);
  fill(byId("mesh"), [["", "all"], ...[...new Set(own.map((block) => block.mesh))].map((mesh) => [mesh, mesh])], chosen("mesh"));
  fill(byId("batch"), [["", "all"], ...[...new Set(own.map((block) => block.batch))].sort((a, b) => a - b).map((batch) => [String(batch), String(batch)])], chosen("batch"));
  const off = hidden();
  const present = new Set(CELLS.filter((cell) => cell.of.subject === subject && cell.status === "ok").map((cell) => cell.implementation));
  byId("implementations").replaceChildren(...[...present].sort((a, b) => a - b).map((number) => {
    const name = IMPLEMENTATIONS[number];
    const box = element("input", { type: "checkbox", checked: !off.has(name) });
    box.addEventListener("change", () => {
      const now = hidden();
      if (box.checked) now.delete(name);
      else now.add(name);
      choose({ off: [...now].join("/") });
      redraw();
    });
    return element("label", { class: "chip" }, box, swatch(number), name);
  }));
}

function swatch(number) {
  const paths = { circle: "M-4,0a4,4,0,1,0,8,0a4,4,0,1,0,-8,0", square: "M-4,-4h8v8h-8z", "triangle-up": "M-5,4h10l-5,-9z",
    diamond: "M0,-5l5,5l-5,5l-5,-5z", cross: "M-5,-2h3v-3h4v3h3v4h-3v3h-4v-3h-3z", "triangle-down": "M-5,-4h10l-5,9z",
    "triangle-right": "M-4,-5v10l9,-5z", "triangle-left": "M4,-5v10l-9,-5z" };
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "-6 -6 12 12");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", paths[shapeOf(number)]);
  path.setAttribute("fill", colourOf(number));
  svg.append(path);
  return svg;
}

// Drawing.

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) drawGroup(entry.target.id);
}, { rootMargin: "300px" });

function drawGroup(id) {
  if (!pending.delete(id)) return;
  const target = byId(id).querySelector(".drawn");
  for (const view of target.querySelectorAll(".chart")) {
    drawn.get(view)?.finalize();
    drawn.delete(view);
  }
  target.replaceChildren(...GROUPS[id](target).filter(Boolean));
}

/* Draw groups again: those in view now, the others when there is time, so that they can be printed. */
function redraw(groups = Object.keys(GROUPS)) {
  for (const id of groups) {
    pending.add(id);
    watcher.unobserve(byId(id));
    watcher.observe(byId(id));
  }
  whenIdle();
}

const later = (callback) => (window.requestIdleCallback
  ? requestIdleCallback(callback, { timeout: 500 }) : setTimeout(callback, 50));

function whenIdle() {
  delete document.body.dataset.drawn;
  later(async () => {
    const next = pending.values().next().value;
    if (next) {
      drawGroup(next);
      whenIdle();
    } else {
      await Promise.all(embedding);
      document.body.dataset.drawn = "all";
      // What was drawn above has moved it.
      if (landing) goTo(landing);
      landing = "";
    }
  });
}

function show() {
  syncControls();
  redraw();
  drawCells();
  drawEffects();
  drawProcesses();
  drawCell();
}

/* The section that the page was opened at, until the reader moves. */
let landing = "";

function goTo(section) {
  const target = section && byId(section);
  if (!target) return;
  for (let above = target; above; above = above.parentElement) if (above.tagName === "DETAILS") above.open = true;
  target.scrollIntoView({ behavior: "instant" });
}

function start() {
  readState();
  document.body.append(tip);
  for (const id of ["subject", "mesh", "batch"]) {
    byId(id).addEventListener("change", (event) => {
      choose({ [id]: event.target.value, ...(id === "subject" ? { ...OF_SUBJECT, subject: event.target.value } : {}) });
      syncControls();
      redraw();
      if (id === "subject") drawCell();
    });
  }
  for (const [id, off] of [["everyone", () => []], ["nobody", () => [...byId("implementations").querySelectorAll("label")].map((label) => label.textContent)]]) {
    byId(id).addEventListener("click", () => { choose({ off: off().join("/") }); syncControls(); redraw(); });
  }
  byId("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    redraw(["heatmap"]);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(["heatmap"]));
  byId("host")?.addEventListener("toggle", drawHost);
  window.addEventListener("hashchange", () => {
    if (!readState()) show();
    goTo(state.section);
  });
  for (const move of ["wheel", "touchstart", "keydown", "pointerdown"]) {
    window.addEventListener(move, () => { landing = ""; }, { once: true, passive: true });
  }
  show();
  landing = state.section;
  goTo(landing);
}

// After the first screen has been painted.
requestAnimationFrame(() => setTimeout(start));
