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
const hidden = () => new Set(chosen("off").split("/").filter(Boolean)); // No name has a slash.
const byPlace = (cells) => [...cells].sort((a, b) => a.block - b.block || a.arm - b.arm);

const cellLink = (cell, text) =>
  linkTo("cell", { subject: cell.of.subjectName, cell: cell.full }, text);

/* A link within the page that changes choices: see `follow`. */
const linkTo = (section, changes, text) =>
  element("a", { href: address(section, changes) }, ...broken(text));
