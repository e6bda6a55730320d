// What all charts have in common: looks of implementations, axes, panels, and marks.
// bench/present/charts.py has the words and the looks, which printed plots share.

const CHARTS = DATA.charts;
const PARTS = DATA.parts;
const COLOURS = Array.from({ length: 8 }, (_, number) => `var(--c${number})`);
const BESIDE = 1.2; // The factor by which a logarithmic axis extends beyond its first and last tick.
const DASHED = [4, 3];
const DOTTED = [1, 3];

const colourOf = (number) => DATA.looks[number].colour;
const shapeOf = (number) => DATA.looks[number].shape;

function config() {
  const font = getComputedStyle(document.body).fontFamily;
  const text = {
    labelColor: "var(--muted)",
    titleColor: "var(--muted)",
    labelFont: font,
    titleFont: font,
    titleFontWeight: 400,
    labelFontSize: 11,
    titleFontSize: 11,
  };
  const strong = { ...text, labelColor: "var(--ink)", titleColor: "var(--ink)" };
  return {
    aria: false, // The figure has a name, and its numbers are in a table.
    background: null,
    font,
    view: { stroke: null },
    axis: {
      ...text,
      domainColor: "var(--line)",
      tickColor: "var(--line)",
      gridColor: "var(--line)",
      gridOpacity: 0.6,
      labelOverlap: true,
    },
    header: { ...strong, labelFontWeight: 600, labelAnchor: "start", labelPadding: 4 },
    legend: { ...strong, symbolStrokeWidth: 0, orient: "top", titlePadding: 8 },
    title: { font, color: "var(--ink)", fontSize: 12, fontWeight: 600, anchor: "start" },
    text: { fill: "var(--ink)", font },
  };
}

// The page's own list of implementations is the legend of their colours and shapes.
const byLook = (property) => (names) => ({
  field: "name",
  type: "nominal",
  legend: null,
  scale: {
    domain: names,
    range: names.map((name) => DATA.looks[IMPLEMENTATIONS.indexOf(name)][property]),
  },
});
const byColour = byLook("colour");
const byShape = byLook("shape");
const byDashes = byLook("dashes");
const namesIn = (rows) => unique(rows.map((row) => row.name).filter(known)).sort();

// The cell under the pointer, in the charts that show single cells.
const FOCUS = { name: "focus", value: -1 };
const focused = (then, otherwise) => ({
  condition: { test: "datum.cell === focus", value: then },
  value: otherwise,
});

const numeric = (field, more) => ({ field, type: "quantitative", ...more });

/* A line for each implementation; it breaks where there is no value. */
const linesOf = (x, y, names, more) => ({
  mark: { type: "line", strokeWidth: 1.5, invalid: "break-paths-show-path-domains" },
  encoding: { x, y, color: byColour(names), strokeDash: byDashes(names) },
  ...more,
});

/* A mark for each row, larger while its cell is under the pointer. */
const marksOf = (x, y, names, [large, small], more) => ({
  mark: { type: "point", filled: true, opacity: 1 },
  encoding: {
    x,
    y,
    color: byColour(names),
    shape: byShape(names),
    size: focused(large, small),
  },
  ...more,
});

/* A panel for each value of a field, in the order of the rows. */
const panelsBy = (field, rows, columns, spec, more) => ({
  params: [FOCUS],
  data: { values: rows },
  facet: { field, type: "nominal", title: null, sort: unique(rows.map((row) => row[field])) },
  columns,
  spec,
  spacing: 18,
  ...more,
});

const TIME_AXIS = { labelExpr: "format(datum.value, '~s') + 's'" };

/* An axis from 0 with ticks at round numbers of bytes. */
function bytesAxis(most) {
  const step = 2 ** Math.ceil(Math.log2(Math.max(most, 5) / 5));
  const values = Array.from({ length: Math.floor(most / step) + 1 }, (_, place) => place * step);
  return { values, ...labelled(values, (value) => (value ? bytes(value) : "0")) };
}

/* An axis whose labels are the page's own texts of its values. */
function labelled(values, text) {
  const texts = Object.fromEntries(values.map((value) => [value, text(value)]));
  return { labelExpr: `(${JSON.stringify(texts)})[datum.value]` };
}

/* An axis of names. Long ones lose their middle, because they often differ at the end. */
function nameAxis(names) {
  const short = (name) =>
    name.length > 30 ? `${name.slice(0, 12)}\u2026${name.slice(-17)}` : name;
  const plain = { title: null, ticks: false, domain: false, labelLimit: 0 };
  return { ...plain, labelColor: "var(--ink)", ...labelled(names, short) };
}

/* Ticks of a logarithmic axis: at powers of ten, or between them too, or where even these are fewer
   than three, evenly. */
function logTicks([low, high]) {
  const first = Math.floor(Math.log10(low));
  const powers = Array.from(
    { length: Math.ceil(Math.log10(high)) - first + 1 },
    (_, place) => 10 ** (first + place),
  );
  for (const steps of [[1], [1, 2, 5]]) {
    const ticks = powers
      .flatMap((power) => steps.map((step) => Number((power * step).toPrecision(3))))
      .filter((tick) => tick >= low && tick <= high);
    if (ticks.length >= 3) return ticks;
  }
  return evenTicks(low, high);
}

/* At most six round numbers, equally far apart. */
function evenTicks(low, high) {
  const power = 10 ** Math.floor(Math.log10((high - low) / 5));
  const step = power * [1, 2, 5, 10].find((size) => size * power >= (high - low) / 5);
  const first = Math.ceil(low / step - 1e-9); // 1.2 is no whole number of 0.2, as computed.
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, place) =>
    Number(((first + place) * step).toPrecision(12)),
  );
}

function padded(values, share) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const by = Math.max(high / low, 1.2) ** share;
  return [low / by, high * by];
}

/* Names by how their values compare in a typical panel, the smallest first. */
function typicalOrder(rows, value) {
  const shares = new Map();
  for (const own of Map.groupBy(rows, (row) => row.place).values()) {
    const least = Math.min(...own.map(value));
    for (const row of own) {
      if (!shares.has(row.name)) shares.set(row.name, []);
      shares.get(row.name).push(value(row) / least);
    }
  }
  const median = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
  const typical = new Map([...shares].map(([name, values]) => [name, median(values)]));
  return [...typical.keys()].sort((a, b) => typical.get(a) - typical.get(b));
}
