// The report's figures: see bench/present/page_data.py, which wrote them.

const DATA = JSON.parse(document.getElementById("data").textContent);
const IMPLEMENTATIONS = DATA.implementations;
const BLOCKS = rowsOf(DATA.blocks);
const CELLS = rowsOf(DATA.cells, ["reasons"]);
const CELL_OF = new Map();

for (const [number, block] of BLOCKS.entries()) {
  block.number = number;
  block.place = `${block.mesh}, batch ${block.batch}`;
  block.subjectName = DATA.subjects[block.subject];
}
for (const [number, cell] of CELLS.entries()) {
  const block = BLOCKS[cell.block];
  cell.number = number;
  cell.of = block;
  cell.name = IMPLEMENTATIONS[cell.implementation];
  cell.full = `${block.name}/${cell.name}`;
  cell.reason = DATA.cells.reasons[cell.reason];
  cell.isBaseline = block.baseline === cell.implementation;
  cell.traced = DATA.traced[number];
  cell.compiling = known(cell.compile) ? cell.trace + cell.lower + cell.compile : null;
  CELL_OF.set(cell.full, cell);
}

/* Rows from columns; those of `others` are no columns. */
function rowsOf(columns, others = []) {
  const keys = Object.keys(columns).filter((key) => !others.includes(key));
  const count = keys.length ? columns[keys[0]].length : 0;
  return Array.from({ length: count }, (_, index) =>
    Object.fromEntries(keys.map((key) => [key, columns[key][index]])),
  );
}

function commandOf(cell) {
  const { command, baseline } = cell.of;
  const names = new Set([baseline >= 0 ? IMPLEMENTATIONS[baseline] : cell.name, cell.name]);
  return `${command} --implementations ${[...names].map(quoted).join(" ")}`;
}

/* A word as a shell takes it, as Python's shlex.quote writes it. */
function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

function verdictOf(cell) {
  if (cell.status !== "ok") return null;
  return cell.isBaseline ? "baseline" : cell.verdict;
}

function whyUndecided(cell) {
  if (cell.verdict !== "undecided") return "";
  if (!cell.paired) return "not paired";
  return known(cell.to_decide) ? toDecide(cell.to_decide) : "too few rounds for an interval";
}
