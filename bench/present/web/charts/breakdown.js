// Where the time of traced steps goes.

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
          number("seconds", "Time", "s"),
        ],
      }),
    }),
    note,
  ];
}
