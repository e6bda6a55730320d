// A chart on the page, with its name, its caption, and a table of its numbers.

const embedding = new Set(); // Promises of charts that are being drawn.

const EMBEDDED = {
  ...{ mode: "vega-lite", renderer: "svg", ast: true }, // The page's policy forbids `eval`.
  ...{ actions: false, defaultStyle: false, tooltip: false },
};

/* Draw a chart in an element, which keeps its `view`. */
async function embed(target, spec) {
  const { fontFamily: font } = getComputedStyle(document.body);
  const config = filled(DATA.specs.common.config, { paper: null, font });
  const { view } = await vegaEmbed(target, { ...spec, config }, EMBEDDED);
  target.view = view;
  view.addEventListener("pointermove", (event, item) => peek(event, item));
  view.addEventListener("pointerout", (event) => peek(event, null));
  view.addEventListener("click", (_event, item) => {
    tip.hidden = true;
    const cell = CELLS[item?.datum?.cell]; // a mark may have none
    if (cell) visit("cell", { cell: cell.full });
  });
}

/*
 * A chart, its caption, and the table behind it.
 *
 * kind: name of its specification
 * given: values of the specification
 * words: `title`, `caption`, and `name`, `rows` and `columns` of the table, if not the kind's
 */
function figure(kind, given, words = {}) {
  const { title: usual, note, table: columns } = CHARTS[kind] ?? {};
  const shown = { title: usual, caption: note, name: kind, rows: given.rows, columns, ...words };
  const { title, caption, name, ...table } = shown;
  const target = element("div.chart", { "aria-hidden": "true" });
  drawLater(target, embed(target, specOf(kind, given)));
  const label = `${title}. The table below has its numbers.`;
  const wide = { class: "wide", tabindex: "0", role: "img", "aria-label": label };
  const below = caption ? element("figcaption", caption) : "";
  const details = numbersBehind(name, () => ({ title, ...table }));
  return element("figure", element("div", wide, target), below, details);
}

const opened = new Set(); // Names of the tables behind charts that the reader has opened.

/* The table behind a chart, made when it is opened; it stays open when the chart is drawn again. */
function numbersBehind(name, table) {
  const ontoggle = ({ target }) => {
    opened[target.open ? "add" : "delete"](name);
    if (!target.querySelector("table")) target.append(makeTable({ name, ...table() }));
  };
  const summary = element("summary", "The numbers behind this chart");
  return element("details", { open: opened.has(name), ontoggle }, summary);
}

/* Fill an element with the children that a drawing resolves to, if any, or say why it failed. */
function drawLater(target, drawing) {
  const ended = drawing
    .then((children) => children && target.replaceChildren(...children))
    .catch((error) => target.append(`This chart could not be drawn: ${error.message}`))
    .finally(() => embedding.delete(ended));
  embedding.add(ended);
  return target;
}

const widthOf = (group) => group.clientWidth || 900;
