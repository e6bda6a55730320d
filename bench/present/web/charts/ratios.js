// Step times relative to the baseline's: a forest plot with a panel for each block.

const NEAREST = 1.05; // Where the axis ends at the nearest; DATA.farthestRatio is the farthest.

/* Ends of the axis: most intervals are to be seen well, whatever single implementations do. */
function ratioDomain(rows, margin) {
  const far = rows
    .map((row) => Math.max(row.high ?? row.ratio, 1 / (row.low ?? row.ratio)))
    .sort((a, b) => a - b)[Math.floor(0.75 * (rows.length - 1))];
  const edge = Math.min(
    Math.max(1.3 * (far - 1) + 1, NEAREST, 1 + 2 * margin),
    DATA.farthestRatio,
  );
  const least = Math.max(1 / edge, Math.min(...rows.map((row) => row.low ?? row.ratio)) / 1.01);
  const most = Math.min(edge, Math.max(...rows.map((row) => row.high ?? row.ratio)) * 1.01);
  return [Math.min(least, 1 / (1 + 1.5 * margin)), Math.max(most, 1 + 1.5 * margin)];
}

/* rows: {name, place, ratio, low, high, floor, paired, cell}. */
function forestChart(rows, { columns, width, margin }) {
  const domain = ratioDomain(rows, margin);
  const clamped = (value) => Math.min(Math.max(value, domain[0]), domain[1]);
  const seen = new Set();
  const data = rows.map((row) => {
    const first = !seen.has(row.place);
    seen.add(row.place);
    const above = row.ratio > domain[1];
    const below = row.ratio < domain[0];
    return {
      ...row,
      first,
      side: above ? "above" : below ? "below" : "within",
      edge: above ? `${ratio(row.ratio)} \u25b8` : `\u25c2 ${ratio(row.ratio)}`,
      floor_low: clamped(1 / (1 + (row.floor ?? 0))),
      floor_high: clamped(1 + (row.floor ?? 0)),
      from: clamped(row.low ?? row.ratio),
      to: clamped(row.high ?? row.ratio),
    };
  });
  const names = namesIn(rows);
  const x = (field) => numeric(field, { scale: { domain, zero: false, nice: false } });
  const axis = { title: null, tickCount: 4, format: "~r", grid: true };
  const y = {
    field: "name",
    type: "nominal",
    sort: typicalOrder(rows, (row) => row.ratio),
    axis: nameAxis(names),
  };
  const once = [{ filter: "datum.first" }];
  const within = [{ filter: 'datum.side === "within"' }];
  const rule = (at, more) => ({
    transform: once,
    mark: { type: "rule", color: "var(--muted)", ...more },
    encoding: { x: { datum: at } },
  });
  const written = (side, align, at) => ({
    transform: [{ filter: `datum.side === "${side}"` }],
    mark: { type: "text", align, fontSize: 11 },
    encoding: { x: { datum: at }, y, text: { field: "edge" }, color: byColour(names) },
  });
  const marks = marksOf(x("ratio"), y, names, [150, 32], { transform: within });
  Object.assign(marks.encoding, {
    fillOpacity: { condition: { test: "datum.paired", value: 1 }, value: 0 },
    strokeWidth: { condition: { test: "datum.paired", value: 0 }, value: 1.5 },
    stroke: byColour(names),
  });
  const layer = [
    {
      transform: once,
      mark: { type: "rect", color: "var(--shade)" },
      encoding: { x: x("floor_low"), x2: { field: "floor_high" } },
    },
    rule(1),
    rule(1 / (1 + margin), { strokeDash: DASHED }),
    rule(1 + margin, { strokeDash: DASHED }),
    {
      transform: [...within, { filter: "isValid(datum.low)" }],
      mark: { type: "rule", strokeWidth: 2.5 },
      encoding: { x: { ...x("from"), axis }, x2: { field: "to" }, y, color: byColour(names) },
    },
    marks,
    written("above", "right", domain[1]),
    written("below", "left", domain[0]),
  ];
  const spec = { width, height: { step: 19 }, layer };
  return panelsBy("place", data, columns, spec, {
    resolve: { axis: { x: "independent" } },
    spacing: { row: 14, column: 18 },
  });
}

GROUPS.ratios = (target) => {
  const compared = byPlace(selection()).filter((cell) => known(cell.ratio) && !cell.isBaseline);
  if (!compared.length) return [nothing("No cell here has a ratio to a baseline.")];
  const [shown, note] = panelled(compared, "ratios", "blocks", blockOf);
  const rows = shown.map((cell) => ({
    cell: cell.number,
    name: cell.name,
    place: cell.of.place,
    ratio: cell.ratio,
    low: cell.ratio_low,
    high: cell.ratio_high,
    paired: cell.paired,
    verdict: cell.verdict,
    floor: floorOf(cell.of),
  }));
  const { margin } = shown[0].of;
  const places = rows.map((row) => row.place);
  const chart = figure({
    title: CHARTS.ratios.title,
    caption: CHARTS.ratios.note.replace("{margin}", percent(margin)),
    spec: forestChart(rows, { margin, ...panelSizes(target, places, { each: 250, most: 320 }) }),
    table: () => ({
      name: "ratios",
      rows,
      columns: [
        CELL,
        number("ratio", "Ratio", "ratio"),
        number("low", "From", "ratio", "95 %"),
        number("high", "To", "ratio", "95 %"),
        VERDICT,
        number("floor", "Noise floor", "percent"),
      ],
    }),
  });
  return [chart, note];
};

/* How far two copies of the baseline may differ, as a share; null where that is unknown. */
function floorOf(block) {
  const [, low, high] = block.floor ?? [];
  return known(low) && known(high) ? Math.max(1 / low, high) - 1 : null;
}
