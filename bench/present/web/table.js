// Tables that are sorted, filtered, searched and downloaded. Text goes in as text, never as HTML.

const ROWS_A_PAGE = 50;

/*
 * A table of objects.
 *
 * columns: {key, title, note, value, text, detail, node, align, filter}
 *   value(row)   what is sorted by and downloaded (default: row[key]); null sorts last
 *   text(value)  how it is shown (default: as it is)
 *   detail(row)  a smaller line below it
 *   node(row)    an element in place of the text
 *   align        "right" for figures, "long" for text that may be folded
 *   filter       whether to offer its values to choose from; a function of a row, if others
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
  for (const column of columns) column.value ??= (row) => row[column.key];
  const shownText = (column, row) => {
    const value = column.value(row);
    return column.text ? column.text(value) : known(value) ? String(value) : MISSING;
  };
  const offered = ({ filter, value }, row) =>
    String(typeof filter === "function" ? filter(row) : value(row));
  let words = null; // Of each row, once somebody searches.
  const wordsOf = (row) =>
    columns
      .map((column) => `${shownText(column, row)} ${column.detail?.(row) ?? ""}`)
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
      { scope: "col", class: column.align },
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
        found = found.filter((index) => offered(column, rows[index]) === wanted);
      }
    }
    for (const word of (state.query ?? "").toLowerCase().split(/\s+/).filter(Boolean)) {
      words ??= rows.map(wordsOf);
      found = found.filter((index) => words[index].includes(word));
    }
    const column = columns.find((one) => one.key === state.sort);
    if (!column) return found;
    const values = rows.map(column.value);
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
            const detail = column.detail?.(row);
            const shown = column.node?.(row) ?? shownText(column, row);
            const below = detail ? element("small", {}, detail) : "";
            if (number) return element("td", { class: column.align }, shown, below);
            const name = typeof shown === "string" ? broken(shown) : [shown];
            const content = element("div", {}, ...name, below);
            return element("th", { scope: "row", class: column.align }, content);
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
      columns.map((column) => column.key),
      ...selected().map((index) => columns.map((column) => column.value(rows[index]))),
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
    const values = [...new Set(rows.map((row) => offered(column, row)))];
    if (values.length < 2) continue;
    const select = element(
      "select",
      { "aria-label": `${column.title}, in: ${title}` },
      element("option", { value: "" }, `${column.title}: all`),
      ...values.map((value) =>
        element("option", { value }, column.text ? column.text(value) : value),
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
