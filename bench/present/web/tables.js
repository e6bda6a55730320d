// Tables of the whole run; the page's data describes their columns.

/* Every value of every cell in the page's data, including the ends of intervals. */
function downloadCells() {
  const { block: _block, arm: _arm, layout: _layout, ...figures } = DATA.cells.figures;
  const columns = Object.keys({ ...DATA.cells.values, ...figures }).map((key) => ({ key }));
  downloadCsv(DATA.cells.name, csvLines(columns, CELLS));
}

function downloadSamples() {
  const rows = BLOCKS.flatMap(({ name, samples, launch }) =>
    Object.entries(samples).flatMap(([arm, values]) =>
      values.map((value, at) => [name, IMPLEMENTATIONS[arm] ?? arm, at + 1, launch[at], value]),
    ),
  );
  const heading = ["block", "implementation", "round", "launch", "step_us"];
  downloadCsv("samples", [heading, ...rows.filter((row) => known(row.at(-1)))]);
}

function drawCells() {
  const columns = DATA.cells.columns.filter(({ only }) => only !== "cell");
  // Fastest first within a block. Unsupported cells come last: they only have a reason to show.
  const time = (cell) => cell.step_s ?? Infinity;
  const isLast = ({ status }) => status === "unsupported";
  const ordered = [...CELLS].sort((a, b) => a.block - b.block || time(a) - time(b) || 0);
  const rows = ordered.sort((a, b) => isLast(a) - isLast(b));
  const changed = () => choose({}, "cells", 200);
  const kept = { given: state.choices, changed, search: true };
  byId("all").replaceChildren(makeTable({ ...DATA.cells, columns, rows, ...kept }));
}

/* What no choice affects. */
function drawTables() {
  const cells = button("every cell with its intervals", downloadCells);
  const samples = button("the samples that it draws", downloadSamples);
  byId("downloads").append("From this page alone, as CSV: ", cells, samples);
  for (const table of TABLES) byId(table.name).append(makeTable(table));
}
