// Common parts of all charts: looks of implementations, axes, panels, and marks.
// bench/present/charts.py defines the words and the looks, also for printed plots.

const CHARTS = DATA.charts;
const PARTS = DATA.parts;

const colourOf = (number) => DATA.looks.colours[number];

/* A part of bench/present/specs.json whose `$names` are replaced by values, or by other parts.
   Properties without a value are left out. */
function filled(part, given, parts = DATA.specs.common) {
  const valueOf = (name) =>
    Object.hasOwn(given, name) ? given[name] : parts[name] && filled(parts[name], given, parts);
  return JSON.parse(JSON.stringify(part), (_key, one) =>
    typeof one === "string" && one.startsWith("$") ? valueOf(one.slice(1)) : one,
  );
}

/* The Vega-Lite specification of a kind of chart. The page's list of implementations is its legend. */
function specOf(kind, given) {
  const { values, ...spec } = DATA.specs[kind];
  const usual = { area: 45, legend: null, xTitle: CHARTS[kind]?.x, yTitle: CHARTS[kind]?.y };
  return filled(spec, { ...usual, ...DATA.looks, ...given }, { ...DATA.specs.common, ...values });
}

/* An axis from 0 with ticks at round numbers of bytes. */
function bytesAxis(most) {
  const step = 2 ** Math.ceil(Math.log2(Math.max(most, 5) / 5));
  const values = Array.from({ length: Math.floor(most / step) + 1 }, (_, place) => place * step);
  const texts = Object.fromEntries(values.map((value) => [value, value ? bytes(value) : "0"]));
  return { values, labelExpr: `(${JSON.stringify(texts)})[datum.value]` };
}

/* Ticks of a logarithmic axis: at powers of ten, between them as well, or evenly spaced if even
   those are fewer than three. */
function logTicks([low, high]) {
  const every = DATA.specs.common.logTicks; // A power of ten, and twice and five times as much.
  const within = (ticks) => ticks.filter((tick) => tick >= low && tick <= high);
  const found = [within(every.filter((_, place) => place % 3 === 0)), within(every)];
  return found.find(({ length }) => length >= 3) ?? evenTicks(low, high);
}

/* At most six evenly spaced round numbers. */
function evenTicks(low, high) {
  const power = 10 ** Math.floor(Math.log10((high - low) / 5));
  const step = power * [1, 2, 5, 10].find((size) => size * power >= (high - low) / 5);
  const first = Math.ceil(low / step - 1e-9); // In floating point, 1.2 is not a multiple of 0.2.
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, place) =>
    Number(((first + place) * step).toPrecision(12)),
  );
}

function padded(values, share) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const by = Math.max(high / low, 1.2) ** share;
  return [low / by, high * by];
}
