// Numbers as bench/records/numbers.py writes them, with three significant digits and SI prefixes.

const MISSING = "\u2013";
const NARROW = "\u202f";
const PREFIXES = ["p", "n", "\u00b5", "m", "", "k", "M", "G", "T", "P", "E"]; // From 1e-12 on.

const unique = (values) => [...new Set(values)];
const ascending = (values) => unique(values).sort((a, b) => a - b);
const known = (value) => value !== null && value !== undefined;

function significant(value, digits = 3) {
  if (value === 0) return "0";
  const rounded = Number(value.toExponential(digits - 1));
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(rounded))));
  return rounded.toFixed(decimals).replace("-", "\u2212");
}

function si(value, unit) {
  if (!known(value)) return MISSING;
  const rounded = Number(value.toExponential(2));
  let power = rounded ? 3 * Math.floor(Math.log10(Math.abs(rounded)) / 3) : 0;
  power = Math.min(Math.max(power, -12), 18);
  return `${significant(rounded / 10 ** power)}${NARROW}${PREFIXES[power / 3 + 4]}${unit}`;
}

function bytes(value) {
  let power = 0;
  for (; value >= 1000 && power < 4; power += 1) value /= 1024;
  const prefix = ["", "Ki", "Mi", "Gi", "Ti"][power];
  return `${power ? significant(value) : value.toFixed(0)}${NARROW}${prefix}B`;
}

function percent(share) {
  const value = 100 * share;
  if (value > 0 && value < 0.005) return `<0.01${NARROW}%`;
  const size = Math.abs(value);
  const decimals = size >= 99.95 || !size ? 0 : size >= 1 ? 1 : 2;
  return `${value.toFixed(decimals)}${NARROW}%`.replace("-", "\u2212");
}

const excess = (share) => (share < 1 ? percent(share) : `${significant(1 + share)}\u00d7`);

function scientific(value) {
  if (!known(value)) return MISSING;
  return value ? value.toExponential(1).replace("e+", "e") : "0";
}

function ratio(value) {
  if (!known(value)) return MISSING;
  return (value > 0 && value < 0.01) || value >= 9.9995 ? significant(value) : value.toFixed(3);
}

/* The formats that columns name; any other name is an SI unit: see bench/present/columns.py. */
const FORMATS = {
  bytes,
  excess,
  percent,
  ratio,
  scientific,
  significant,
  count: (value) => value.toFixed(0),
  text: String,
  status: (value) => DATA.statuses[value],
};

function formatted(value, name = "text") {
  if (!known(value)) return MISSING;
  const own = name.replace("+", "");
  const format = FORMATS[own] ?? ((number) => si(number, own === "si" ? "" : own).trim());
  const text = format(value);
  return name.startsWith("+") && value > 0 ? `+${text}` : text;
}
