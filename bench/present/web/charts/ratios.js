// Step times relative to the baseline's: a forest plot with a panel for each block.

/* Ends of the axis: they hold every interval, up to a factor of DATA.farthestRatio. */
function ratioDomain(rows, margin) {
  const least = Math.min(...rows.map((row) => row.verdict_low ?? row.ratio_low ?? row.ratio)) / 1.01;
  const most = Math.max(...rows.map((row) => row.verdict_high ?? row.ratio_high ?? row.ratio)) * 1.01;
  const near = 1 + 1.5 * margin;
  return [
    Math.min(Math.max(least, 1 / DATA.farthestRatio), 1 / near),
    Math.max(Math.min(most, DATA.farthestRatio), near),
  ];
}

GROUPS.ratios = (target) => {
  const compared = byPlace(selection()).filter((cell) => known(cell.ratio));
  if (!compared.some((cell) => !cell.isBaseline))
    return [nothing("No cell here has a ratio to a baseline.")];
  const [shown, note] = panelled(compared, "ratios", "blocks", blockOf);
  const rows = shown.map((cell) => rowOf(cell, "ratios", { floor: cell.of.floor }));
  const { margin } = shown[0].of;
  const places = unique(rows.map((row) => row.place));
  const [left, right] = ratioDomain(rows, margin);
  const sizes = panelSizes(target, places, { each: 250, most: 320 });
  const order = typicalOrder(rows, (row) => row.ratio);
  const ends = { left, right, nearer: 1 / (1 + margin), farther: 1 + margin };
  const given = { rows, places, order, ...ends, ...sizes, ...looksOf(rows), xTitle: null };
  const chart = figure("ratios", given, {
    caption: CHARTS.ratios.note.replace("{margin}", percent(margin)),
    rows: rows.filter((row) => !row.isBaseline),
  });
  return [chart, note];
};
