// Tables of the whole run, and what the host did over it.

function drawCells() {
  const right = "right";
  const table = {
    sort: chosen("sort"),
    down: chosen("down") === "1",
    query: chosen("q"),
    filters: Object.fromEntries(
      [...state.choices]
        .filter(([key]) => key.startsWith("is."))
        .map(([key, value]) => [key.slice(3), value]),
    ),
  };
  const changed = () => {
    const filters = Object.entries(table.filters).map(([key, value]) => [`is.${key}`, value]);
    const { sort, query: q, down } = table;
    choose({ sort, q, down: down ? "1" : "", ...Object.fromEntries(filters) }, "cells", 200);
  };
  byId("all").replaceChildren(
    makeTable({
      title: "All cells",
      name: `${DATA.run.name}-cells`,
      rows: CELLS,
      state: table,
      changed,
      search: true,
      columns: [
        {
          key: "name",
          title: "Implementation",
          filter: true,
          node: (cell) => cellLink(cell, cell.name),
          detail: (cell) => (cell.apart ? "measured apart" : ""),
        },
        {
          key: "workload",
          title: "Workload",
          value: (cell) => cell.of.subjectName,
          filter: true,
          align: "long",
        },
        { key: "mesh", title: "Mesh", value: (cell) => cell.of.mesh, filter: true },
        {
          key: "batch",
          title: "Batch",
          value: (cell) => cell.of.batch,
          align: right,
          filter: true,
        },
        {
          key: "status",
          title: "Status",
          filter: true,
          detail: (cell) => (cell.reason ?? "").slice(0, 120),
        },
        { key: "verdict", title: "Verdict", value: verdictOf, filter: true, detail: whyUndecided },
        {
          key: "ratio",
          title: "To baseline",
          note: "ratio, 95 % interval",
          text: ratio,
          align: right,
          detail: (cell) =>
            cell.isBaseline ? "" : interval(cell.ratio_low, cell.ratio_high, ratio),
        },
        {
          key: "step",
          title: "Step time",
          note: "median, quartiles",
          text: (value) => si(value, "s"),
          align: right,
          detail: (cell) => interval(cell.step_low, cell.step_high, (value) => si(value, "s")),
        },
        {
          key: "latency",
          title: "Latency",
          note: "median, quartiles",
          text: (value) => si(value, "s"),
          align: right,
          detail: (cell) =>
            interval(cell.latency_low, cell.latency_high, (value) => si(value, "s")),
        },
        {
          key: "rate",
          title: "Throughput",
          note: "a second",
          text: (value) => si(value, ""),
          align: right,
          detail: (cell) => (known(cell.rate) ? cell.unit : ""),
        },
        ...(CELLS.some((cell) => cell.traced?.main)
          ? [
              {
                key: "why",
                title: "Why",
                note: "main cause, as traced",
                align: "long",
                value: (cell) => cell.traced?.main ?? null,
                detail: (cell) =>
                  cell.traced?.main
                    ? `${cell.traced.main_s > 0 ? "+" : ""}${si(cell.traced.main_s, "s")}`
                    : "",
              },
            ]
          : []),
        {
          key: "compiling",
          title: "Compile",
          note: "trace + lower + compile",
          text: seconds,
          align: right,
          detail: (cell) =>
            known(cell.compiling)
              ? `${[cell.trace, cell.lower, cell.compile].map((value) => seconds(value).split(NARROW)[0]).join(" + ")}${cell.cached ? " cached" : ""}`
              : "",
        },
        {
          key: "memory",
          title: "Memory",
          note: "a device, as planned",
          text: bytes,
          align: right,
          detail: (cell) => (known(cell.high_water) ? `${bytes(cell.high_water)} measured` : ""),
        },
        {
          key: "wire",
          title: "Sends",
          note: "a device and step",
          text: bytes,
          align: "right long",
          detail: (cell) => cell.collectives,
        },
        {
          key: "traced_flops",
          title: "Traced FLOPs",
          note: "over the model's",
          value: (cell) => (known(cell.traced_flops) ? cell.traced_flops / cell.model_flops : null),
          text: significantOrMissing,
          align: right,
        },
        {
          key: "compiled_flops",
          title: "Compiled FLOPs",
          note: "over the model's",
          value: (cell) =>
            known(cell.compiled_flops) ? cell.compiled_flops / cell.model_flops : null,
          text: significantOrMissing,
          align: right,
        },
        { key: "roof", title: "Of the roof", note: "measured", text: percent, align: right },
        {
          key: "mfu",
          title: "MFU",
          text: (value) => (known(value) ? percent(value) : "unknown"),
          align: right,
        },
        { key: "proof", title: "Proof", note: "of the allowed error", text: percent, align: right },
        ...(CELLS.some((cell) => cell.traced)
          ? [
              {
                key: "viewer",
                title: "Trace",
                value: (cell) => cell.traced?.viewer ?? null,
                node: (cell) => (cell.traced ? traceLink(cell) : null),
              },
            ]
          : []),
        {
          key: "command",
          title: "Again",
          value: commandOf,
          node: (cell) =>
            element(
              "details",
              { class: "command" },
              element("summary", {}, "command"),
              element("code", {}, commandOf(cell)),
            ),
        },
      ],
    }),
  );
}

function drawEffects() {
  const rows = rowsOf(DATA.effects);
  const section = byId("effects");
  section.hidden = !rows.length;
  if (!rows.length) return;
  byId("changed").replaceChildren(
    makeTable({
      title: "Against the usual",
      name: "variants",
      rows,
      columns: [
        CELL,
        {
          key: "ratio",
          title: "Ratio",
          text: ratio,
          align: "right",
          detail: (row) => interval(row.low, row.high, ratio),
        },
        { key: "low", title: "From", note: "95 %", text: ratio, align: "right" },
        { key: "high", title: "To", note: "95 %", text: ratio, align: "right" },
        { key: "verdict", title: "Verdict", filter: true },
      ],
    }),
  );
}

/* What steps use, where counters told. */
function drawEnergy() {
  const rows = CELLS.filter((cell) => known(cell.joules));
  byId("energy").hidden = !rows.length;
  if (!rows.length) return;
  const joules = (value) => si(value, "J");
  const within = (value, error, text) =>
    known(value) ? interval(Math.max(value - error, 0), value + error, text) : "";
  byId("used").replaceChildren(
    makeTable({
      title: "Energy",
      name: "energy",
      rows,
      columns: [
        {
          key: "name",
          title: "Implementation",
          filter: true,
          node: (cell) => cellLink(cell, cell.name),
        },
        {
          key: "workload",
          title: "Workload",
          value: (cell) => cell.of.subjectName,
          filter: true,
          align: "long",
        },
        { key: "place", title: "Mesh, batch", value: (cell) => cell.of.place, filter: true },
        {
          ...number("joules", "A step", joules, "95 % interval"),
          detail: (cell) => within(cell.joules, cell.joules_error, joules),
        },
        number("joules_unit", "Of one", joules, "sample or token"),
        {
          ...number("per_joule", "Per joule", significantOrMissing),
          detail: (cell) => cell.unit,
        },
        number("watts", "Power", (value) => si(value, "W"), "mean"),
        {
          ...number("energy_ratio", "To baseline", ratio, "joules a step"),
          detail: (cell) => within(cell.energy_ratio, cell.energy_ratio_error, ratio),
        },
      ],
    }),
  );
}

function drawProcesses() {
  const rows = BLOCKS.flatMap((block) =>
    block.slow.map(([arm, slowest, often, excess]) => ({
      name: IMPLEMENTATIONS[arm],
      place: `${block.subjectName}, ${block.place}`,
      slowest,
      often,
      excess,
    })),
  );
  byId("processes").hidden = !rows.length;
  if (!rows.length) return;
  byId("slow").replaceChildren(
    makeTable({
      title: "Slowest processes",
      name: "processes",
      rows,
      columns: [
        NAME,
        { key: "place", title: "Block", filter: true },
        { key: "slowest", title: "Slowest process", note: "by rank", align: "right" },
        { key: "often", title: "How often", note: "of the spans", text: percent, align: "right" },
        {
          key: "excess",
          title: "Apart",
          note: "slowest over fastest, median",
          text: percent,
          align: "right",
        },
      ],
    }),
  );
}

function drawHost() {
  const moments = rowsOf(DATA.timeline);
  const target = byId("timeline");
  if (!moments.length || target.childElementCount) return;
  const width = Math.min(900, widthOf(target) - 80);
  const panel = (title, series, axis, log) => {
    const rows = series.flatMap(([key, what]) =>
      moments
        .filter((row) => known(row[key]))
        .map((row) => ({
          minutes: row.minutes,
          what,
          value: log ? row[key] : Math.max(row[key], 0),
        })),
    );
    return rows.length
      ? figure({
          title,
          spec: timelineChart(rows, { width, title, axis, log }),
          table: () => ({
            name: "timeline",
            rows,
            columns: [
              { key: "minutes", title: "Minutes", text: significantOrMissing, align: "right" },
              { key: "what", title: "What", filter: true },
              { key: "value", title: "Value", text: significantOrMissing, align: "right" },
            ],
          }),
        })
      : "";
  };
  target.append(
    panel(
      "Step time of the baselines, each against its block's median",
      [["relative", "baseline"]],
      { format: "~r" },
      true,
    ),
    panel(
      "Share of the cores' time that others had",
      [
        ["foreign", "other processes"],
        ["steal", "other guests (steal)"],
      ],
      { format: ".0%" },
      false,
    ),
    panel("Mean frequency of the cores, MHz", [["mhz", "frequency"]], {}, false),
  );
}
