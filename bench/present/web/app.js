// Assembles the page: its groups of charts are drawn one after another, those in view first.

const pending = new Set(); // Groups of charts that are still to be drawn.

/* Draw a group, or hide it where the run has nothing for it. */
function drawGroup(id) {
  if (!pending.delete(id)) return;
  const target = byId(id).querySelector(".drawn");
  byId(id).hidden = false; // A hidden one has no width.
  // Keep the content below in place until the new charts are drawn.
  target.style.minHeight = `${target.offsetHeight}px`;
  for (const { view } of target.querySelectorAll(".chart")) view?.finalize();
  const apart = !byId(id).closest("#explore"); // from what the choices above the charts affect
  const all = () => narrow({ mesh: "", batch: "", off: "" });
  const none = () => [nothing("Nothing matches the choices above. ", button("Show all", all))];
  const shown = apart || selection().length ? GROUPS[id](target) : none();
  const focused = target.contains(document.activeElement) && document.activeElement.id;
  target.replaceChildren(...(shown ?? []).filter(Boolean));
  reveal(id, shown);
  if (focused) byId(focused)?.focus({ preventScroll: true }); // a selector that has been drawn again
}

/* Show or hide a section and its link. */
function reveal(id, shown) {
  byId(id).hidden = !shown;
  document.querySelector(`nav li:has([href="#${id}"])`)?.toggleAttribute("hidden", !shown);
}

/* The groups, in the order of the page. */
const everyGroup = () =>
  [...document.querySelectorAll("section:has(> .drawn)")].map(({ id }) => id);

/* The groups that show the choices of a section. */
const drawnWith = (section) => (section === "compare" ? ["compare", "step"] : [section]);

/* Redraw groups one after another: those in view first, and the others for printing. */
function redraw(groups = everyGroup()) {
  for (const id of groups) pending.add(id);
  delete document.body.dataset.drawn;
  setTimeout(drawNext);
}

async function drawNext() {
  const isInView = (id) => {
    const { top, bottom } = byId(id).getBoundingClientRect();
    return bottom > 0 && top < innerHeight;
  };
  const [first] = pending;
  if (first) {
    drawGroup([...pending].find(isInView) ?? first);
    return setTimeout(drawNext);
  }
  await Promise.all(embedding);
  if (pending.size) return; // The reader has made another choice meanwhile.
  for (const target of document.querySelectorAll(".drawn")) target.style.minHeight = "";
  if (held) scrollBy({ top: held[0].getBoundingClientRect().top - held[1], behavior: "instant" });
  held = null;
  document.body.dataset.drawn = "all";
}

let held = null; // An element, and the place in the viewport to keep it at while others are drawn.

function hold(element) {
  held = element && pending.size ? [element, element.getBoundingClientRect().top] : null;
}

/* Choices that are reset when the subject changes. */
const OF_SUBJECT = { mesh: "", batch: "", off: "", curve: "", along: "", cell: "", all: "" };

/* Change choices and redraw the groups that they affect: by default, all but the description of a cell. */
function narrow(changes, groups, section = state.section) {
  const other = "subject" in changes && changes.subject !== DATA.subjects[subjectNumber()];
  choose({ ...(other ? OF_SUBJECT : {}), ...changes }, section);
  syncControls();
  const all = everyGroup();
  redraw(other ? all : (groups ?? all.filter((id) => id !== "cell")));
  const below = document.querySelector(".controls").getBoundingClientRect().bottom + 80;
  const isVisible = (group) => group.getBoundingClientRect().bottom > below;
  hold([...document.querySelectorAll("#explore section")].find(isVisible));
}

/* Follow a link that changes choices, and keep all others; the browser's back button returns. */
function follow(event) {
  const link = event.target.closest("a[href^='#'][href*='?']");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const [section, query] = link.hash.slice(1).split("?");
  visit(section, Object.fromEntries(new URLSearchParams(query)));
}

/* Go to a section after some choices have changed. */
function visit(section, changes) {
  history.pushState(null, "", location.href);
  narrow(changes, drawnWith(section), section);
  drawGroup(section);
  goTo(section);
  byId(section).querySelector("[tabindex], select").focus({ preventScroll: true });
}

function show() {
  syncControls();
  drawChooser();
  redraw();
  drawCells();
}

let width = innerWidth;
let resizing = 0;

/* Redraw the charts after the width of the window has changed. */
function resized() {
  clearTimeout(resizing);
  resizing = setTimeout(() => {
    if (width === innerWidth) return;
    width = innerWidth;
    syncControls();
    redraw();
  }, 200);
}

function goTo(section) {
  const target = section && byId(section);
  if (!target) return;
  for (let above = target; above; above = above.parentElement)
    if (above.tagName === "DETAILS") above.open = true;
  target.scrollIntoView({ behavior: "instant" });
  hold(target);
}

function start() {
  readState();
  document.body.append(tip);
  const on = (kind, ids, listener) => {
    for (const id of ids) byId(id).addEventListener(kind, listener);
  };
  const ofCharts = ["subject", "mesh", "batch"];
  on("change", ofCharts, ({ target: { id, value } }) => narrow({ [id]: value }));
  on("change", CASE, ({ target: { id, value } }) => {
    choose({ [id]: value });
    drawChooser();
  });
  on("change", ["a", "b"], () => choosePair(byId("a").value, byId("b").value));
  on("click", ["swap"], () => choosePair(byId("b").value, byId("a").value));
  on("click", ["everyone"], () => narrow({ off: "" }));
  on("click", ["nobody"], () => narrow({ off: IMPLEMENTATIONS.join("/") }));
  window.addEventListener("resize", resized);
  document.addEventListener("click", follow);
  window.addEventListener("hashchange", () => {
    if (!readState()) show();
    goTo(state.section);
  });
  for (const move of ["wheel", "touchmove", "keydown", "pointerdown"])
    window.addEventListener(move, () => hold(null), { capture: true, passive: true });
  for (const table of TABLES) byId(table.name).append(makeTable(table)); // No choice affects them.
  reveal("explore", TABLES.length || CELLS.some(({ status }) => status === "ok"));
  show();
  goTo(state.section);
}

// Start after the first paint.
requestAnimationFrame(() => setTimeout(start));
