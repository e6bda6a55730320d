// Tables of the whole run; the page's data describes their columns.

function drawCells() {
  const columns = DATA.cells.columns.filter(({ only }) => only !== "cell");
  // Fastest first within a block. Unsupported cells come last: they only have a reason to show.
  const time = (cell) => cell.step_s ?? Infinity;
  const isLast = ({ status }) => status === "unsupported";
  const ordered = [...CELLS].sort((a, b) => a.block - b.block || time(a) - time(b) || 0);
  const rows = ordered.sort((a, b) => isLast(a) - isLast(b));
  // Its CSV also has what only the description of a cell shows, and the ends of intervals.
  const { block: _block, arm: _arm, layout: _layout, ...figures } = DATA.cells.figures;
  const saved = Object.keys({ ...DATA.cells.values, ...figures }).map((key) => ({ key }));
  const kept = { given: state.choices, changed: () => choose({}, "cells", 200) };
  byId("all").replaceChildren(makeTable({ ...DATA.cells, columns, rows, saved, ...kept }));
}
