// Where the time of traced steps goes, as stacked bars.

GROUPS.breakdown = (target) => {
  const traced = byPlace(selection()).filter((cell) => cell.traced);
  if (!traced.length) return null;
  const [shown, note] = panelled(traced, "breakdown");
  const share = chosen("bars") === "share";
  const rows = shown.flatMap((cell) =>
    PARTS.map(({ key, title: what }, number) =>
      rowOf(cell, "breakdown", { part: key, what, number, seconds: cell.traced.parts[key] }),
    ),
  );
  const parts = PARTS.filter(({ key }) => rows.some((row) => row.part === key && row.seconds > 0));
  const given = {
    rows,
    ...panelSizes(target, rows, { each: 300, most: 420 }),
    parts: parts.map(({ title }) => title),
    partColours: parts.map(({ colour }) => colour),
    legendColumns: Math.floor(widthOf(target) / 120), // The widest label has 110 pixels.
    stack: share ? "normalize" : "zero",
    ...(share ? { xAxis: { tickCount: 5, title: "share of the traced step", format: ".0%" } } : {}),
  };
  const chart = figure("breakdown", given, { rows: rows.filter((row) => row.seconds > 0) });
  const bars = [["", "time"], ["share", "share of the step"]];
  return [choices(selector("Bars", "bars", bars, "breakdown")), chart, note];
};
