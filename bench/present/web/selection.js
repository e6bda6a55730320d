// The cells that the reader's choices select.

/* The cells of the chosen subject and implementations, and of the chosen `by`. */
function selection(by = ["mesh", "batch"]) {
  const subject = subjectNumber();
  const off = hidden();
  return CELLS.filter(
    (cell) =>
      cell.of.subject === subject &&
      !off.has(cell.name) &&
      by.every((key) => !chosen(key) || String(cell.of[key]) === chosen(key)),
  );
}

const subjectNumber = () => Math.max(0, DATA.subjects.indexOf(chosen("subject")));
const hidden = () => chosenNames("off");
const byPlace = (cells) => [...cells].sort((a, b) => a.block - b.block || a.arm - b.arm);

function cellLink(cell, text) {
  const href = address("cell", { subject: cell.of.subjectName, cell: cell.full });
  return linkTo(href, text, () => open(cell));
}

/* A link within the page: a click calls `follow`, unless it opens the link elsewhere. */
function linkTo(href, text, follow) {
  const onclick = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    follow();
  };
  return element("a", { href, onclick }, ...broken(text));
}
