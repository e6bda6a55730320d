// What all charts have in common: colours, shapes, text, axes.

const COLOURS = Array.from({ length: 8 }, (_, number) => `var(--c${number})`);
const SHAPES = [
  "circle",
  "square",
  "triangle-up",
  "diamond",
  "cross",
  "triangle-down",
  "triangle-right",
  "triangle-left",
];
const PARTS = [
  ["dispatch", "Dispatch", "var(--c7)"],
  ["matmul", "Matrix products", "var(--c0)"],
  ["elementwise", "Elementwise", "var(--c5)"],
  ["layout", "Layout", "var(--c6)"],
  ["unknown", "Unknown", "var(--muted)"],
  ["wait", "Waiting", "var(--c4)"],
  ["move", "Moving data", "var(--c1)"],
  ["idle", "Idle", "var(--line)"],
];
const BESIDE = 1.2; // By how much an axis of devices or batches goes beyond the first and the last.
const DASHED = [4, 3];
const DOTTED = [1, 3];
// The reference of loss curves lies beneath them, wide enough to be seen, and what it is in other
// arithmetic has dashes: as in print, see bench/present/plots/losses.py.
const REFERENCES = new Map([
  ["whole batch", { strokeDash: [1, 0], strokeWidth: 5, opacity: 0.35 }],
  ["whole batch in parts", { strokeDash: DOTTED, strokeWidth: 1.4, opacity: 1 }],
  ["whole batch in float64", { strokeDash: [8, 3], strokeWidth: 1.4, opacity: 1 }],
]);
const EQUAL = "equal"; // Where an axis shows differences of 0, for which a logarithmic one has no place.

const colourOf = (number) => COLOURS[number % COLOURS.length];
// The ninth implementation has the first one's colour, and another shape.
const shapeOf = (number) => SHAPES[(number + Math.floor(number / COLOURS.length)) % SHAPES.length];

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
    header: {
      ...text,
      labelColor: "var(--ink)",
      labelFontWeight: 600,
      titleColor: "var(--ink)",
      labelAnchor: "start",
      labelPadding: 4,
    },
    legend: {
      ...text,
      labelColor: "var(--ink)",
      symbolStrokeWidth: 0,
      orient: "top",
      titlePadding: 8,
    },
    title: { font, color: "var(--ink)", fontSize: 12, fontWeight: 600, anchor: "start" },
    text: { fill: "var(--ink)", font },
  };
}

// What colours and shapes mean is shown by the page's own list of implementations.
const byColour = (names) => ({
  field: "name",
  type: "nominal",
  legend: null,
  scale: { domain: names, range: names.map((name) => colourOf(IMPLEMENTATIONS.indexOf(name))) },
});
const byShape = (names) => ({
  field: "name",
  type: "nominal",
  legend: null,
  scale: { domain: names, range: names.map((name) => shapeOf(IMPLEMENTATIONS.indexOf(name))) },
});
const namesIn = (rows) => [...new Set(rows.map((row) => row.name).filter(known))].sort();

// The cell under the pointer, in the charts that show single cells.
const FOCUS = { name: "focus", value: -1 };
const focused = (then, otherwise) => ({
  condition: { test: "datum.cell === focus", value: then },
  value: otherwise,
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

/* Names on an axis; of long ones the middle is left out, as what differs is often at the end. */
function nameAxis(names) {
  const short = (name) =>
    name.length > 30 ? `${name.slice(0, 12)}\u2026${name.slice(-17)}` : name;
  return {
    title: null,
    labelColor: "var(--ink)",
    labelLimit: 0,
    ticks: false,
    domain: false,
    ...labelled(names, short),
  };
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
  const panels = Map.groupBy(rows, (row) => row.place);
  const shares = new Map();
  for (const own of panels.values()) {
    const least = Math.min(...own.map(value));
    for (const row of own) {
      if (!shares.has(row.name)) shares.set(row.name, []);
      shares.get(row.name).push(value(row) / least);
    }
  }
  const middle = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
  return [...shares]
    .map(([name, values]) => [name, middle(values)])
    .sort((a, b) => a[1] - b[1])
    .map(([name]) => name);
}
