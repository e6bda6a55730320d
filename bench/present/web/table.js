// Tables that are sorted, filtered, searched and downloaded. Text goes in as text, never as HTML.

const FIRST_ROWS = 15; // About as many as a window shows; up to twice as many are not divided.
const MORE_ROWS = 200;

/*
 * A table of objects.
 *
 * columns: {key, title, note, format, filter, long}, as bench/present/columns.py writes them;
 *   `format` is a name, or a function of a value and its row
 * rows: an item for each column; `detail`, smaller texts by column; and `cell`, the number of the
 *   row's cell, to which its first column links
 * saved: the columns of its CSV
 * given: what the reader has chosen, `sort`, `down`, `q` and `is.<key>`, as URLSearchParams;
 *   `changed()` is called after changes.
 */
function makeTable({ title, name, columns, rows, saved = columns, given, changed }) {
  given ??= new URLSearchParams();
  const first = rows.length > 2 * FIRST_ROWS ? FIRST_ROWS : rows.length;
  let room = first;
  const body = element("tbody");
  const count = element("span.count", { role: "status" });
  const more = button("Show more rows", () => {
    room += MORE_ROWS;
    draw();
  });
  const headings = columns.map((column) =>
    heading(column, () => {
      const again = given.get("sort") === column.key && !given.has("down");
      redrawn({ sort: column.key, down: again ? "1" : "" });
    }),
  );
  const chosenRows = rowFinder(columns, rows, given);

  function draw() {
    const found = chosenRows();
    const order = given.has("down") ? "descending" : "ascending";
    columns.forEach(({ key }, place) => {
      headings[place].ariaSort = given.get("sort") === key ? order : null;
    });
    body.replaceChildren(...found.slice(0, room).map((row) => line(columns, row)));
    const of = found.length === rows.length ? "" : `${found.length} of `;
    count.textContent = `${of}${rows.length} ${rows.length === 1 ? "row" : "rows"}`;
    more.hidden = found.length <= room;
  }

  function redrawn(changes) {
    put(given, changes);
    room = first;
    draw();
    changed?.();
  }

  const save = () => downloadCsv(name, csvLines(saved, chosenRows()));
  const download = button("CSV", save, { "aria-label": `Download as CSV: ${title}` });
  const field = rows.length > 8 ? searchField(title, given, redrawn) : "";
  const filters = columns
    .filter(({ filter }) => filter)
    .map((column) => filterOf(column, rows, title, given, redrawn));
  const tools = element("div.tools", field, ...filters, count, download);
  draw();
  const head = element("thead", element("tr", ...headings));
  const table = element("table.numbers", element("caption.unseen", title), head, body);
  return element("div.table", tools, scrolled(title, table), more);
}

const textOf = ({ format }, value, row) =>
  typeof format === "function" ? format(value, row) : formatted(value, format);

const detailOf = ({ key }, row) => row.detail?.[key] ?? "";

/* Numbers are aligned right. */
const alignmentOf = ({ format = "text", long }) =>
  `${["text", "status"].includes(format) ? "" : "right"}${long ? " long" : ""}`.trim();

function heading(column, sortBy) {
  const { title, note } = column;
  const sort = button(title, sortBy, { class: "sort" });
  const below = note ? element("small", note) : "";
  return element("th", { scope: "col", class: alignmentOf(column) }, sort, below);
}

function line(columns, row) {
  const cells = columns.map((column, number) => {
    const text = textOf(column, row[column.key], row);
    const detail = detailOf(column, row);
    const below = detail ? element("small", detail) : "";
    if (!number) {
      const name = element("div", ...rowName(columns, row, text, below));
      return element("th", { scope: "row" }, name);
    }
    return element("td", { class: alignmentOf(column) }, text, below);
  });
  return element("tr", ...cells);
}

/* A row's name links to its cell; the cell's place is below it unless the table has it. */
function rowName(columns, row, text, below) {
  if (!known(row.cell)) return [...broken(text), below];
  const cell = CELLS[row.cell];
  const placed = below || columns.some(({ key }) => key === "mesh");
  return [cellLink(cell, text), placed ? below : element("small", whereOf(cell))];
}

/* Return a function that returns the rows that the reader has chosen, in the chosen order. */
function rowFinder(columns, rows, given) {
  let words = null; // Text of each row, computed on the first search.
  const wordsIn = (row, column) => [textOf(column, row[column.key], row), detailOf(column, row)];
  const wordsOf = (row) => columns.flatMap((column) => wordsIn(row, column)).join(" ");
  return () => {
    const wanted = columns.filter(({ key }) => given.get(`is.${key}`));
    const searched = (given.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    if (searched.length) words ??= new Map(rows.map((row) => [row, wordsOf(row).toLowerCase()]));
    const found = rows.filter(
      (row) =>
        wanted.every(({ key }) => String(row[key]) === given.get(`is.${key}`)) &&
        searched.every((word) => words.get(row).includes(word)),
    );
    const by = columns.find(({ key }) => key === given.get("sort"))?.key;
    const sign = given.has("down") ? -1 : 1;
    return by ? found.sort((a, b) => compare(a[by], b[by], sign)) : found;
  };
}

/* Missing values come last in either direction. */
function compare(a, b, sign) {
  if (!known(a) || !known(b)) return known(b) - known(a);
  if (typeof a === "string") return sign * a.localeCompare(b, "en", { numeric: true });
  return sign * (a - b);
}

function searchField(title, given, redrawn) {
  const named = { type: "search", placeholder: "Search", "aria-label": `Search in: ${title}` };
  const oninput = ({ target }) => redrawn({ q: target.value });
  return element("input", { ...named, value: given.get("q"), oninput });
}

function filterOf(column, rows, title, given, redrawn) {
  const [{ key }, name] = [column, `is.${column.key}`];
  const values = unique(rows.map((row) => row[key]).filter(known));
  if (values.length < 2) return "";
  const onchange = () => redrawn({ [name]: select.value });
  const select = element("select", { "aria-label": `${column.title}, in: ${title}`, onchange });
  const texts = values.map((value) => [value, textOf(column, value)]);
  fill(select, [["", `${column.title}: all`], ...texts], given.get(name) ?? "");
  return select;
}

/* Raw values; rows about cells also have the cell's full name. */
function csvLines(columns, rows) {
  const keys = columns.map(({ key }) => key);
  const named = rows.some((row) => known(row.cell));
  const nameOf = (row) => (named ? [CELLS[row.cell]?.full] : []);
  return [
    [...(named ? ["cell"] : []), ...keys],
    ...rows.map((row) => [...nameOf(row), ...keys.map((key) => row[key])]),
  ];
}

function downloadCsv(name, rows) {
  const quoted = (value) => {
    let text = known(value) ? String(value) : "";
    // A spreadsheet would evaluate a text that looks like a formula, which `+4 %` is not.
    if (typeof value === "string" && /^[=+\-@\t\r](?![\d.]+ ?%?$)/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const text = rows.map((row) => `${row.map(quoted).join(",")}\n`).join("");
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  element("a", { href: address, download: `${name.replace(/[^\w.-]+/g, "-")}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
