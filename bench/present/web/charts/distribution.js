// The rounds of one cell: how its step times are distributed, and its ratio over time.

/* rows: {name, value}: samples of a few arms of one block. */
function distributionChart(rows, { width, names, colours, title }) {
  const of = (field, more, axis) => numeric(field, { ...more, axis: { tickCount: 5, ...axis } });
  return {
    title,
    width,
    height: 220,
    data: { values: rows },
    transform: [
      { window: [{ op: "cume_dist", as: "share" }], sort: [{ field: "value" }], groupby: ["name"] },
    ],
    encoding: {
      x: of("value", { scale: { zero: false, nice: true } }, { ...TIME_AXIS, title: "step time" }),
      y: of("share", {}, { title: "share of rounds up to that time", format: ".0%" }),
      color: {
        field: "name",
        type: "nominal",
        scale: { domain: names, range: colours },
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
  const launches = { title: "launch", symbolType: "circle" };
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
          x: numeric("round", {
            axis: { title: "round, in order of time", grid: false, tickMinStep: 1 },
          }),
          y: numeric("ratio", {
            scale: { zero: false },
            axis: { title: "ratio to the baseline in the round", tickCount: 5 },
          }),
          color: {
            field: "launch",
            type: "nominal",
            scale: { range: COLOURS },
            legend: rows.some((row) => row.launch > 1) ? launches : null,
          },
        },
      },
    ],
  };
}
