// Common code of the groups of charts: selection and width of panels, and tables of their data.

const GROUPS = {}; // By kind of chart: a function of the element that returns its contents, or null.
const MOST_PANELS = 12;

const choices = (...selectors) => element("div.choices", ...selectors);
const nothing = (...texts) => element("p.note", ...texts);

/* The first column of charts' tables, which links each row to its cell. */
const CELL = { key: "name", title: "Implementation", filter: true };
const whereOf = (cell) =>
  [DATA.subjects.length > 1 ? cell.of.subjectName : "", cell.of.place].filter(Boolean).join(", ");
const number = (key, title, format = "count", note = "") => ({ key, title, format, note });

/* The cells of a limited number of panels, one for each block, and a note on the others. */
function panelled(cells, group) {
  const panels = unique(cells.map(({ block }) => block));
  if (chosen("all") === group || panels.length <= MOST_PANELS) return [cells, ""];
  const shown = new Set(panels.slice(0, MOST_PANELS));
  const drawAll = button("Draw all", () => narrow({ all: group }, [group]));
  const left = `${panels.length - MOST_PANELS} of ${panels.length} blocks are not drawn. `;
  return [cells.filter((cell) => shown.has(cell.block)), nothing(left, drawAll)];
}

/* A row of a kind of chart about a cell, like `_row` in plots/kinds.py. */
const rowOf = (cell, kind, more) => ({
  ...{ cell: cell.number, name: cell.name, place: cell.of.place, isBaseline: cell.isBaseline },
  ...Object.fromEntries((CHARTS[kind].row ?? []).map((key) => [key, cell[key]])),
  ...more,
});

/* The panels of rows, how many of them fit beside one another, and the width of each. Only the first
   has labels on the vertical axis. */
const LABELS = 210;
function panelSizes(target, rows, { each, labels = LABELS, most }) {
  const room = widthOf(target) - labels;
  const fitting = Math.floor(room / each);
  const places = unique(rows.map((row) => row.place));
  const columns = Math.max(1, Math.min(4, places.length, fitting));
  return { places, columns, width: Math.min(most, Math.max(110, room / columns - 24)) };
}
