// What the groups of charts share: which panels are drawn, how wide, and tables behind them.

const MOST_PANELS = 12;

const unique = (values) => [...new Set(values)];

const ascending = (values) => unique(values).sort((a, b) => a - b);

const choices = (...selectors) => element("div", { class: "choices" }, ...selectors);

const nothing = (text) => element("p", { class: "note" }, text);

/* The first column of tables behind charts, whose rows are about cells: it leads there. */
const CELL = { key: "name", title: "Implementation", filter: true };

const whereOf = (cell) =>
  [DATA.subjects.length > 1 ? cell.of.subjectName : "", cell.of.place].filter(Boolean).join(", ");

const VERDICT = { key: "verdict", title: "Verdict", filter: true };

const number = (key, title, format = "count", note = "") => ({ key, title, format, note });

/* The cells of at most so many panels, a panel a `key`, and what is said of the others. */
function panelled(cells, group, what, key) {
  const panels = unique(cells.map(key));
  if (chosen("all") === group || panels.length <= MOST_PANELS) return [cells, ""];
  const shown = new Set(panels.slice(0, MOST_PANELS));
  const button = element("button", { type: "button" }, "Draw all");
  button.addEventListener("click", () => {
    choose({ all: group });
    redraw([group]);
  });
  const left = `Not drawn: ${panels.length - MOST_PANELS} of ${panels.length} ${what}. `;
  return [
    cells.filter((cell) => shown.has(key(cell))),
    element("p", { class: "note" }, left, button),
  ];
}

const blockOf = (cell) => cell.block;

/* Panels side by side: only the first has labels, which take so much room. */
const LABELS = 210;

const columnsFor = (target, each, panels, labels) =>
  Math.max(1, Math.min(4, unique(panels).length, Math.floor((widthOf(target) - labels) / each)));

const panelWidth = (target, columns, labels, most) =>
  Math.min(most, Math.max(110, (widthOf(target) - labels) / columns - 24));

/* A panel for each place, in the order of the rows. */
const panelsByPlace = (rows) => ({
  field: "place",
  type: "nominal",
  title: null,
  sort: [...new Set(rows.map((row) => row.place))],
});
