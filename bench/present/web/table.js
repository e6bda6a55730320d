// Tables that are sorted, filtered, searched and downloaded. Text goes in as text, never as HTML.

const ROWS_A_PAGE = 50;

/*
 * A table of objects.
 *
 * columns: {key, title, note, format, filter, long}, as bench/present/columns.py writes them;
 *   `format` is a name, or a function that makes a text
 * rows: an item for each column; `detail`, smaller texts by column; and `cell`, the number of the
 *   cell that a row is about, to which its first column leads
 * state: {sort, down, query, filters}, kept by the caller; `changed()` is called when it has.
 */
function makeTable({
  title,
  name,
  columns,
  rows,
  state = {},
  changed = () => {},
  search = rows.length > 8,
}) {
  const textOf = ({ format }, value) =>
    typeof format === "function" ? format(value) : formatted(value, format);
  const detailOf = ({ key }, row) => row.detail?.[key] ?? "";
  const ofCells = rows.some((row) => known(row.cell));
  const placed = columns.some(({ key }) => key === "mesh");
  const placeOf = (row) => (placed ? "" : element("small", {}, whereOf(CELLS[row.cell])));
  const alignmentOf = ({ format, long }) =>
    [isNumber(format) ? "right" : "", long ? "long" : ""].join(" ").trim();
  let words = null; // Of each row, once somebody searches.
  const wordsOf = (row) =>
    columns
      .map((column) => `${textOf(column, row[column.key])} ${detailOf(column, row)}`)
      .join(" ")
      .toLowerCase();
  state.filters ??= {};
  let pages = 1;

  const body = element("tbody");
  const count = element("span", { class: "count", role: "status" });
  const more = element(
    "button",
    {
      type: "button",
      onclick: () => {
        pages += 4;
        draw();
      },
    },
    "Show more rows",
  );
  const headings = columns.map((column) => {
    const arrow = element("span", { class: "arrow", "aria-hidden": "true" });
    const button = element("button", { type: "button", class: "sort" }, column.title, arrow);
    const cell = element(
      "th",
      { scope: "col", class: alignmentOf(column) },
      button,
      column.note ? element("small", {}, column.note) : "",
    );
    button.addEventListener("click", () => {
      state.down = state.sort === column.key && !state.down;
      state.sort = column.key;
      draw();
      changed();
    });
    return { column, cell, arrow };
  });

  function selected() {
    let found = rows.map((_, index) => index);
    for (const [key, wanted] of Object.entries(state.filters)) {
      const column = columns.find((one) => one.key === key);
      if (column && wanted !== "") {
        found = found.filter((index) => String(rows[index][key]) === wanted);
      }
    }
    for (const word of (state.query ?? "").toLowerCase().split(/\s+/).filter(Boolean)) {
      words ??= rows.map(wordsOf);
      found = found.filter((index) => words[index].includes(word));
    }
    const column = columns.find((one) => one.key === state.sort);
    if (!column) return found;
    const values = rows.map((row) => row[column.key]);
    const sign = state.down ? -1 : 1;
    return found.sort((a, b) => {
      const [one, other] = [values[a], values[b]];
      if (!known(one) || !known(other)) return known(other) - known(one) || a - b;
      if (one === other) return a - b;
      if (typeof one === "string") {
        return sign * one.localeCompare(other, "en", { numeric: true });
      }
      return sign * (one < other ? -1 : 1);
    });
  }

  function draw() {
    const found = selected();
    for (const { column, cell, arrow } of headings) {
      const sorted = state.sort === column.key;
      if (sorted) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
      arrow.textContent = sorted ? (state.down ? " \u25be" : " \u25b4") : "";
    }
    body.replaceChildren(
      ...found.slice(0, pages * ROWS_A_PAGE).map((index) => {
        const row = rows[index];
        return element(
          "tr",
          {},
          ...columns.map((column, number) => {
            const text = textOf(column, row[column.key]);
            const detail = detailOf(column, row);
            const below = detail ? element("small", {}, detail) : "";
            if (number) {
              const shown = column.format === "command" ? folded(text) : text;
              return element("td", { class: alignmentOf(column) }, shown, below);
            }
            const name = known(row.cell)
              ? [cellLink(CELLS[row.cell], text), below || placeOf(row)]
              : [...broken(text), below];
            return element("th", { scope: "row" }, element("div", {}, ...name));
          }),
        );
      }),
    );
    count.textContent =
      found.length === rows.length
        ? `${rows.length} rows`
        : `${found.length} of ${rows.length} rows`;
    more.hidden = found.length <= pages * ROWS_A_PAGE;
  }

  const download = () =>
    downloadCsv(name, [
      [...(ofCells ? ["cell"] : []), ...columns.map(({ key }) => key)],
      ...selected().map((index) => [
        ...(ofCells ? [CELLS[rows[index].cell]?.full] : []),
        ...columns.map(({ key }) => rows[index][key]),
      ]),
    ]);

  const tools = element("div", { class: "tools" });
  if (search) {
    const field = element("input", {
      type: "search",
      placeholder: "Search",
      "aria-label": `Search in: ${title}`,
    });
    field.value = state.query ?? "";
    field.addEventListener("input", () => {
      state.query = field.value;
      pages = 1;
      draw();
      changed();
    });
    tools.append(field);
  }
  for (const column of columns.filter((one) => one.filter)) {
    const values = [...new Set(rows.map((row) => String(row[column.key])))];
    if (values.length < 2) continue;
    const select = element(
      "select",
      { "aria-label": `${column.title}, in: ${title}` },
      element("option", { value: "" }, `${column.title}: all`),
      ...values.map((value) =>
        element("option", { value }, column.format === "status" ? textOf(column, value) : value),
      ),
    );
    select.value = values.includes(state.filters[column.key]) ? state.filters[column.key] : "";
    select.addEventListener("change", () => {
      state.filters[column.key] = select.value;
      pages = 1;
      draw();
      changed();
    });
    tools.append(select);
  }
  tools.append(
    count,
    element(
      "button",
      { type: "button", onclick: download, "aria-label": `Download as CSV: ${title}` },
      "CSV",
    ),
  );
  draw();
  return element(
    "div",
    { class: "table" },
    tools,
    element(
      "div",
      { class: "wide", tabindex: "0", role: "region", "aria-label": title },
      element(
        "table",
        { class: "numbers" },
        element("caption", { class: "unseen" }, title),
        element("thead", {}, element("tr", {}, ...headings.map(({ cell }) => cell))),
        body,
      ),
    ),
    more,
  );
}

/* Whether a format is of numbers, which are aligned right. */
const isNumber = (format = "text") => !["text", "status", "command"].includes(format);

/* A long text that is seen on demand. */
const folded = (text) =>
  element(
    "details",
    { class: "command" },
    element("summary", {}, "command"),
    element("code", {}, text),
  );

/* Tables that are part of the page as it was written can be downloaded too, as they stand. */
function offerDownload(button) {
  const table = button.parentElement.nextElementSibling.querySelector("table");
  const lines = () =>
    [...table.rows].map((row) => [...row.cells].map((cell) => cell.innerText.replace(/\s+/g, " ")));
  button.addEventListener("click", () => downloadCsv(table.caption.textContent, lines()));
}

function downloadCsv(name, rows) {
  const quoted = (value) => {
    let text = known(value) ? String(value) : "";
    // A spreadsheet would run what looks like a formula.
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const text = rows.map((row) => `${row.map(quoted).join(",")}\n`).join("");
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  element("a", { href: address, download: `${name.replace(/[^\w.-]+/g, "-")}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
