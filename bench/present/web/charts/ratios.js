// Step times relative to the baseline's: a forest plot with a panel for each block.

GROUPS.ratios = (target) => {
  const compared = byPlace(selection()).filter((cell) => known(cell.ratio));
  if (!compared.some((cell) => !cell.isBaseline)) return null;
  const [shown, note] = panelled(compared, "ratios");
  const rows = shown.map((cell) => rowOf(cell, "ratios", { floor: cell.of.floor }));
  const { margin } = shown[0].of;
  const sizes = panelSizes(target, rows, { each: 250, most: 320 });
  const { wide: scale, logTicks: ticks } = DATA.specs.common;
  const wide = rows.some((row) => Math.max(row.ratio, 1 / row.ratio) > 2);
  const axis = { xTitle: null, ...(wide ? { scale, ticks } : {}) };
  const chart = figure("ratios", { rows, margin, ...sizes, ...axis }, {
    caption: CHARTS.ratios.note.replace("{margin}", percent(margin)),
    rows: rows.filter((row) => !row.isBaseline),
  });
  return [chart, note];
};
