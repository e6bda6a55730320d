// The cell under the pointer: described beside it and in a panel, and marked in every other chart
// that shows it. A click keeps it in the panel, so that the panel's links can be reached.

const tip = element("div.tip", { hidden: true, "aria-hidden": "true" });
let inFocus = null;
let kept = null;

function peek(event, item) {
  const cell = CELLS[item?.datum?.cell];
  tip.hidden = true;
  if (!cell) return;
  const { part, what, seconds: spent } = item.datum;
  const ofPart = part ? [element("b", `${what}: ${si(spent, "s")}`)] : [];
  showTip(event, [cell.name, cell.of.place, ...ofPart, ...summaryOf(cell)]);
  if (!kept) focusOn(cell);
}

/* Show lines beside the pointer, the first one in bold. */
function showTip({ clientX, clientY }, [name, ...lines]) {
  tip.hidden = false;
  tip.replaceChildren(element("b", name), ...lines.map((line) => element("span", line)));
  const { clientWidth, clientHeight } = document.documentElement;
  tip.style.left = `${Math.min(clientX + 14, clientWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(clientY + 14, clientHeight - tip.offsetHeight - 8)}px`;
}

function keep(item) {
  kept = CELLS[item?.datum?.cell] ?? null;
  if (!kept) return;
  focusOn(kept);
  narrow({ cell: kept.full }, ["cell"]);
}

function summaryOf(cell) {
  if (cell.status !== "ok") return [`${cell.status}: ${cell.reason}`];
  const lines = [
    `${si(cell.step_s, "s")} per step (${si(cell.step_q1_s, "s")} to ${si(cell.step_q3_s, "s")})`,
  ];
  if (cell.isBaseline) lines.push("the baseline");
  else if (known(cell.ratio)) {
    const ends = [cell.ratio_low, cell.ratio_high].filter(known).map(ratio).join("\u2013");
    const verdict = cell.verdict ?? "no verdict";
    lines.push(`${ratio(cell.ratio)} of the baseline${ends ? ` (${ends})` : ""}: ${verdict}`);
  }
  return lines;
}

function focusOn(cell) {
  if (inFocus === cell) return;
  inFocus = cell;
  for (const { view } of document.querySelectorAll(".chart"))
    view?.signal("lead", cell.name).signal("focus", cell.number).runAsync();
  const trace = cell.traced ? [" \u00b7 ", traceLink(cell)] : [];
  const panel = byId("peek");
  panel.classList.add("filled");
  panel.replaceChildren(
    element("h4", cell.name),
    ...[cell.of.place, ...summaryOf(cell)].map((line) => element("p", line)),
    cell.traced?.why ? element("p", cell.traced.why) : "",
    element("p", cellLink(cell, "all about this cell"), ...trace),
    element("p", compareLink(cell)),
  );
}

/* A link to a trace in TensorBoard on the reader's own machine, so useless on a web server. */
const traceLink = (cell) =>
  ["file:", "blob:"].includes(location.protocol) || location.hostname === "localhost"
    ? element("a", { href: cell.traced.viewer }, "its trace")
    : element("span", "traced");
