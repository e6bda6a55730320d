// The rounds of one cell.

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
