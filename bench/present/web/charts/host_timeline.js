// The host over the run.

/* rows: {minutes, value, what}: one panel of the timeline. */
function timelineChart(rows, { width, title, axis, log, height = 130 }) {
  const domain = padded(
    rows.map((row) => row.value),
    0.05,
  );
  const whats = unique(rows.map((row) => row.what));
  return {
    title,
    width,
    height,
    data: { values: rows },
    mark: { type: "point", filled: true, size: 12, opacity: 0.8, clip: true },
    encoding: {
      x: numeric("minutes", { axis: { title: "minutes since the first round", grid: false } }),
      y: numeric("value", {
        scale: log ? { type: "log", domain, nice: false } : { zero: true },
        axis: { title: null, ...(log ? { values: logTicks(domain) } : { tickCount: 4 }), ...axis },
      }),
      color: {
        field: "what",
        type: "nominal",
        scale: { domain: whats, range: ["var(--c0)", "var(--c1)", "var(--c3)"] },
        legend: whats.length > 1 ? { title: null, symbolType: "circle" } : null,
      },
    },
  };
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
              number("minutes", "Minutes", "significant"),
              { key: "what", title: "What", filter: true },
              number("value", "Value", "significant"),
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
