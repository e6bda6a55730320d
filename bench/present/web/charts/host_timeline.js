// The host over the run.

const AGAINST_MEDIAN = "Step time of the baselines, each against its block's median";
const OF_OTHERS = "Share of the cores' time that others had";

/* Title of each panel, its series, its vertical axis, and whether that is logarithmic. */
const PANELS = [
  [AGAINST_MEDIAN, { relative: "baseline" }, { format: "~r" }, true],
  [OF_OTHERS, { foreign: "other processes", steal: "other guests (steal)" }, { format: ".0%" }],
  ["Mean frequency of the cores, MHz", { mhz: "frequency" }, {}],
];

function drawHost() {
  const moments = rowsOf(DATA.timeline);
  const target = byId("timeline");
  const width = Math.min(900, widthOf(target) - 80);
  for (const [title, series, axis, log = false] of PANELS) {
    const rows = Object.entries(series).flatMap(([key, what]) =>
      moments
        .filter((row) => known(row[key]))
        .map(({ minutes, [key]: value }) => ({ minutes, what, value: log ? value : Math.max(value, 0) })),
    );
    if (!rows.length) continue;
    const columns = [
      number("minutes", "Minutes", "significant"),
      { key: "what", title: "What", filter: true },
      number("value", "Value", "significant"),
    ];
    const domain = padded(rows.map((row) => row.value), 0.05);
    const whats = unique(rows.map((row) => row.what));
    const given = {
      ...{ title, width, rows, whats },
      yScale: log ? { type: "log", domain, nice: false } : { zero: true },
      yAxis: { title: null, ...(log ? { values: logTicks(domain) } : { tickCount: 4 }), ...axis },
      legend: whats.length > 1 ? { title: null, symbolType: "circle" } : null,
    };
    target.append(figure("timeline", given, { title, columns }));
  }
}
