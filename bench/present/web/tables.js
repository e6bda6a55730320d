// Tables of the whole run; the page's data describes their columns.

function drawCells() {
  const table = {
    sort: chosen("sort"),
    down: chosen("down") === "1",
    query: chosen("q"),
    filters: Object.fromEntries(
      [...state.choices]
        .filter(([key]) => key.startsWith("is."))
        .map(([key, value]) => [key.slice(3), value]),
    ),
  };
  const changed = () => {
    const filters = Object.entries(table.filters).map(([key, value]) => [`is.${key}`, value]);
    const { sort, query: q, down } = table;
    choose({ sort, q, down: down ? "1" : "", ...Object.fromEntries(filters) }, "cells", 200);
  };
  const columns = DATA.cells.columns.filter(({ only }) => only !== "cell");
  // Fastest first within a block. What is not supported has nothing to show but its reason.
  const last = (cell) => cell.step_s ?? Infinity;
  const sorted = [...CELLS].sort((a, b) => a.block - b.block || last(a) - last(b) || 0);
  const rows = sorted.filter((cell) => cell.status !== "unsupported");
  const folded = sorted.filter((cell) => cell.status === "unsupported");
  const tableOf = (own) =>
    makeTable({ ...DATA.cells, columns, rows: own, state: table, changed, search: true });
  const every = table.filters.status === "unsupported" || !rows.length;
  const more = button(`Show ${folded.length} unsupported cells too`, () =>
    byId("all").replaceChildren(tableOf(sorted)),
  );
  if (every || !folded.length) byId("all").replaceChildren(tableOf(sorted));
  else byId("all").replaceChildren(tableOf(rows), more);
}

function drawTables() {
  for (const table of TABLES) {
    byId(table.name)?.querySelector(".made").replaceChildren(makeTable(table));
  }
}
