// Tables of the whole run; the page's data describes their columns.

let unfolded = false; // Whether unsupported cells are shown.

/* Whether a column of the table of all cells is shown: the reader has added or removed some. */
const isShown = ({ key, only }) => (only !== "cell") !== chosenNames("columns").has(key);

/* The checkboxes for its columns; the first column names the row and is always shown. */
function drawColumns() {
  const box = (column) => {
    const onchange = () => {
      choose({ columns: toggled("columns", column.key) }, "cells");
      drawCells();
    };
    const input = element("input", { type: "checkbox", checked: isShown(column), onchange });
    const note = column.note ? element("small", column.note) : "";
    return element("label", input, element("span", column.title, note));
  };
  const some = ({ key }) => CELLS.some((cell) => known(cell[key]));
  byId("columns").replaceChildren(...DATA.cells.columns.slice(1).filter(some).map(box));
}

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
  const columns = DATA.cells.columns.filter(isShown);
  // Fastest first within a block. An unsupported cell has nothing to show except its reason.
  const last = (cell) => cell.step_s ?? Infinity;
  const sorted = [...CELLS].sort((a, b) => a.block - b.block || last(a) - last(b) || 0);
  const supported = sorted.filter((cell) => cell.status !== "unsupported");
  const every = unfolded || chosen("is.status") === "unsupported" || !supported.length;
  const rows = every ? sorted : supported;
  const hidden = CELLS.length - rows.length;
  const more = button(`Show ${hidden} unsupported ${hidden > 1 ? "cells" : "cell"} too`, () => {
    unfolded = true;
    drawCells();
  });
  const changed = () => choose({}, "cells", 200);
  const kept = { given: state.choices, changed, search: true };
  const made = makeTable({ ...DATA.cells, columns, rows, ...kept });
  byId("all").replaceChildren(made, ...(rows.length < CELLS.length ? [more] : []));
}

/* What no choice affects. */
function drawTables() {
  const cells = button("every cell with its intervals", downloadCells);
  const samples = button("the samples that it draws", downloadSamples);
  byId("downloads").append("From this page alone, as CSV: ", cells, samples);
  for (const table of TABLES) byId(table.name).append(makeTable(table));
}
