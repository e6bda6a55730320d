// Assembles the page: charts are drawn when they scroll into view, or when the browser is idle.

const pending = new Set(); // Groups of charts that are still to be drawn.

const watcher = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) if (entry.isIntersecting) drawGroup(entry.target.id);
  },
  { rootMargin: "300px" },
);

function drawGroup(id) {
  if (!pending.delete(id)) return;
  const target = byId(id).querySelector(".drawn");
  // Keep the content below in place until the new charts are drawn.
  target.style.minHeight = `${target.offsetHeight}px`;
  clear(target);
  const apart = !byId(id).closest("#explore"); // from what the choices above the charts affect
  const shown = apart || selection().length ? GROUPS[id](target) : [nothingChosen()];
  const focused = target.contains(document.activeElement) && document.activeElement.id;
  target.replaceChildren(...shown.filter(Boolean));
  if (focused) byId(focused)?.focus({ preventScroll: true }); // a selector that has been drawn again
  // Where a program raced its own functions, no option could fill an empty group.
  const empty = target.children.length === 1 && target.firstChild.matches(".note");
  byId(id).hidden = DATA.race && empty && id !== "compare" && selection().length > 0;
}

function nothingChosen() {
  const all = button("Show all", () => narrow({ mesh: "", batch: "", off: "" }));
  return nothing("Nothing matches the choices above. ", all);
}

let held = null; // The group of charts to keep at `heldAt` in the viewport.
let heldAt = 0;

/* Keep the visible charts in place while others are drawn. */
function hold() {
  const below = document.querySelector(".controls").getBoundingClientRect().bottom;
  held = [...document.querySelectorAll("#explore section")].find(
    (group) => group.getBoundingClientRect().bottom > below + 80,
  );
  heldAt = held?.getBoundingClientRect().top;
}

/* Change choices and redraw the charts. */
function narrow(changes) {
  hold();
  choose(changes);
  syncControls();
  redraw("subject" in changes ? everyGroup() : everyChart());
}

/* The groups, in the order of the page, and those that do not only describe a cell. */
const everyGroup = () =>
  [...document.querySelectorAll("section:has(> .drawn)")].map(({ id }) => id);
const everyChart = () => everyGroup().filter((id) => id !== "cell");

/* Redraw groups: visible ones now, the others while the browser is idle, for printing. */
function redraw(groups = everyGroup()) {
  for (const id of groups) {
    pending.add(id);
    watcher.unobserve(byId(id));
    watcher.observe(byId(id));
  }
  whenIdle();
}

const later = (callback) =>
  window.requestIdleCallback
    ? requestIdleCallback(callback, { timeout: 500 })
    : setTimeout(callback, 50);

function whenIdle() {
  delete document.body.dataset.drawn;
  later(async () => {
    const next = pending.values().next().value;
    if (next) {
      drawGroup(next);
      whenIdle();
    } else {
      await Promise.all(embedding);
      if (pending.size) return; // The reader has made another choice meanwhile.
      for (const target of document.querySelectorAll(".drawn")) target.style.minHeight = "";
      if (held) scrollBy({ top: held.getBoundingClientRect().top - heldAt, behavior: "instant" });
      held = null;
      document.body.dataset.drawn = "all";
      // The charts drawn above have moved the section.
      if (landing) goTo(landing);
      landing = "";
    }
  });
}

function show() {
  syncControls();
  drawChooser();
  redraw();
  drawColumns();
  drawCells();
}

/* The section at which the page was opened, until the reader scrolls. */
let landing = "";

let width = innerWidth;
let resizing = 0;

/* Redraw the charts after the width of the window has changed. */
function resized() {
  clearTimeout(resizing);
  resizing = setTimeout(() => {
    if (width === innerWidth) return;
    width = innerWidth;
    redraw();
  }, 200);
}

function goTo(section) {
  const target = section && byId(section);
  if (!target) return;
  for (let above = target; above; above = above.parentElement)
    if (above.tagName === "DETAILS") above.open = true;
  target.scrollIntoView({ behavior: "instant" });
}

function start() {
  readState();
  document.body.append(tip);
  const on = (kind, ids, listener) => {
    for (const id of ids) byId(id).addEventListener(kind, listener);
  };
  on("change", ["subject", "mesh", "batch"], ({ target: { id, value } }) => {
    narrow({ ...(id === "subject" ? OF_SUBJECT : {}), [id]: value });
  });
  on("change", CASE, ({ target: { id, value } }) => {
    choose({ [id]: value });
    drawChooser();
  });
  on("change", ["a", "b"], () => choosePair(byId("a").value, byId("b").value));
  on("click", ["swap"], () => choosePair(byId("b").value, byId("a").value));
  on("click", ["everyone"], () => narrow({ off: "" }));
  on("click", ["nobody"], () => narrow({ off: IMPLEMENTATIONS.join("/") }));
  on("click", ["theme"], () => {
    const { theme } = document.documentElement.dataset;
    const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
  });
  window.addEventListener("resize", resized);
  new ResizeObserver(([entry]) => {
    // The sticky controls must not cover a section that the address links to.
    document.documentElement.style.setProperty("--controls", `${entry.target.offsetHeight}px`);
  }).observe(document.querySelector(".controls"));
  byId("host")?.addEventListener("toggle", drawHost, { once: true });
  byId("predicted")?.addEventListener("toggle", drawPredicted, { once: true });
  for (const button of document.querySelectorAll(".tools > .csv")) offerDownload(button);
  for (const link of document.querySelectorAll(".behind td a")) {
    const cell = CELL_OF.get(new URLSearchParams(link.hash.split("?")[1]).get("cell"));
    link.replaceWith(Object.assign(cellLink(cell, link.textContent), { title: link.title }));
  }
  window.addEventListener("hashchange", () => {
    if (!readState()) show();
    goTo(state.section);
  });
  const stay = () => (landing = "");
  for (const move of ["wheel", "touchstart", "keydown", "pointerdown"])
    window.addEventListener(move, stay, { once: true, passive: true });
  for (const scroll of ["wheel", "touchmove"])
    window.addEventListener(scroll, () => (held = null), { passive: true });
  drawTables();
  show();
  landing = state.section;
  goTo(landing);
}

// Start after the first paint.
requestAnimationFrame(() => setTimeout(start));
