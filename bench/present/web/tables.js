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
  byId("all").replaceChildren(
    makeTable({ ...DATA.cells, columns, rows: CELLS, state: table, changed, search: true }),
  );
}

function drawTables() {
  for (const table of TABLES) {
    byId(table.name)?.querySelector(".made").replaceChildren(makeTable(table));
  }
}
