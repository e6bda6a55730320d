// The host over the run.

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
