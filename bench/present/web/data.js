// The report's data: see bench/present/page_data.py, which wrote it.

const DATA = JSON.parse(document.getElementById("data").textContent);
const IMPLEMENTATIONS = DATA.implementations;
const BLOCKS = rowsOf(DATA.blocks);
const CAUSES = rowsOf(DATA.causes); // Causes of traced steps' times.
const TABLES = DATA.tables.map((table) => ({ ...table, rows: tableRows(table) }));
const CELLS = tableRows(DATA.cells);
const CELL_OF = new Map();

for (const block of BLOCKS) {
  block.place = `${block.mesh}, batch ${block.batch}`;
  block.subjectName = DATA.subjects[block.subject];
}
for (const [number, figures] of rowsOf(DATA.cells.figures).entries()) {
  const cell = Object.assign(CELLS[number], figures, { number });
  cell.of = BLOCKS[cell.block];
  cell.name = cell.implementation;
  cell.full = `${cell.of.name}/${cell.name}`;
  cell.isBaseline = cell.of.baseline === cell.arm;
  cell.traced = DATA.traced[number];
  CELL_OF.set(cell.full, cell);
}

/* Rows from columns. */
function rowsOf(columns) {
  const entries = Object.entries(columns);
  const count = entries.length ? entries[0][1].length : 0;
  return Array.from({ length: count }, (_, index) =>
    Object.fromEntries(entries.map(([key, values]) => [key, values[index]])),
  );
}

/* Rows of a table: values by column, their details, and the number of the cell they are about. */
function tableRows({ values, details, cell }) {
  const below = rowsOf(details);
  return rowsOf(values).map((row, index) => ({
    ...row,
    detail: below[index] ?? {},
    cell: cell[index],
  }));
}

/* The value that bench/records/step_programs.py compressed. */
function expanded(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}
