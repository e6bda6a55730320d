// Where the time of traced steps goes, as stacked bars.

/* rows: {name, place, part, seconds, number, cell}, one for each part. */
function partsChart(rows, { columns, width, share }) {
  const parts = PARTS.filter(({ key }) => rows.some((row) => row.part === key && row.seconds > 0));
  const titles = Object.fromEntries(parts.map(({ key, title }) => [key, title]));
  const names = typicalOrder(rows, (row) => row.whole);
  const { x } = CHARTS.breakdown;
  const spec = {
    width,
    height: { step: 19 },
    mark: { type: "bar", height: { band: 0.78 } },
    encoding: {
      x: numeric("seconds", {
        stack: share ? "normalize" : "zero",
        axis: share
          ? { title: "share of the traced step", format: ".0%", tickCount: 5 }
          : { ...TIME_AXIS, title: x, tickCount: 5 },
      }),
      y: { field: "name", type: "nominal", sort: names, axis: nameAxis(names) },
      color: {
        field: "part",
        type: "nominal",
        scale: { domain: parts.map(({ key }) => key), range: parts.map(({ colour }) => colour) },
        legend: {
          title: null,
          columns: 8,
          labelExpr: `(${JSON.stringify(titles)})[datum.label]`,
        },
      },
      order: { field: "number" },
    },
  };
  return panelsBy("place", rows, columns, spec, {
    params: [],
    transform: [{ filter: "datum.seconds > 0" }],
    resolve: share ? {} : { scale: { x: "independent" } },
  });
}

GROUPS.breakdown = (target) => {
  const traced = byPlace(selection()).filter((cell) => cell.traced);
  if (!traced.length)
    return [nothing("Nothing was traced here: --profile records where the step time goes.")];
  const [shown, note] = panelled(traced, "breakdown", "blocks", blockOf);
  const share = chosen("bars") === "share";
  const rows = shown.flatMap((cell) =>
    PARTS.map(({ key, title }, place) => ({
      cell: cell.number,
      name: cell.name,
      place: cell.of.place,
      part: key,
      what: title,
      number: place,
      seconds: cell.traced.parts[key],
      whole: Object.values(cell.traced.parts).reduce((sum, spent) => sum + spent, 0),
    })),
  );
  const places = rows.map((row) => row.place);
  const bars = [
    ["", "time"],
    ["share", "share of the step"],
  ];
  return [
    choices(selector("Bars", "bars", bars, chosen("bars"), "breakdown")),
    figure({
      title: CHARTS.breakdown.title,
      caption: CHARTS.breakdown.note,
      spec: partsChart(rows, { share, ...panelSizes(target, places, { each: 300, most: 420 }) }),
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
};
