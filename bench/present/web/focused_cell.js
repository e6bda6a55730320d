// The cell under the pointer: described beside it, and marked in every chart that shows it.

const tip = element("div.tip", { hidden: true, "aria-hidden": "true" });
let inFocus = null;

function peek(event, item) {
  const cell = CELLS[item?.datum?.cell];
  tip.hidden = true;
  if (!cell) return;
  const { part, what, seconds: spent } = item.datum;
  const ofPart = part ? [element("b", `${what}: ${si(spent, "s")}`)] : [];
  showTip(event, [cell.name, cell.of.place, ...ofPart, ...summaryOf(cell)]);
  if (inFocus === cell) return;
  inFocus = cell;
  for (const { view } of document.querySelectorAll(".chart"))
    view?.signal("lead", cell.name).signal("focus", cell.number).runAsync();
}

/* Show lines beside the pointer, the first one in bold. */
function showTip({ clientX, clientY }, [name, ...lines]) {
  tip.hidden = false;
  tip.replaceChildren(element("b", name), ...lines.map((line) => element("span", line)));
  const { clientWidth, clientHeight } = document.documentElement;
  tip.style.left = `${Math.min(clientX + 14, clientWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(clientY + 14, clientHeight - tip.offsetHeight - 8)}px`;
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

/* A link to a trace in TensorBoard on the reader's own machine, so useless on a web server. */
const traceLink = (cell) =>
  ["file:", "blob:"].includes(location.protocol) || location.hostname === "localhost"
    ? element("a", { href: cell.traced.viewer }, "its trace")
    : element("span", "traced");
