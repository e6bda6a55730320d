// The picture of traced steps: a lane for each device, in which operations are blocks on a scale of
// time. Blocks of one part of the step are one path, and those of one pixel are merged, so that
// thousands are drawn at once; the operation under the pointer is looked up in the data.

const STEP_ROW = 15;
const STEP_LABELS = 76; // Width of the lanes' labels.
const STEP_ROWS = 4; // The most rows of a lane; what has no room is drawn in the last.
const STEP_NARROWEST_NS = 200; // The shortest time that the picture shows.
const LIGHT_PARTS = new Set(["elementwise", "wait", "layout", "idle"]); // With dark text.

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/* A cell and its step: lanes of the devices, runs of operations by device and start, and meetings of
   devices in collectives. A run has its `arm`, its `lane`, and the meeting to which others came. */
function armOf(cell, { ns, one_clock: oneClock, left_out: leftOut, ops, runs: stored }) {
  const arm = { cell, ns, oneClock, leftOut, meetings: [] };
  const described = rowsOf(ops);
  const told = (run) => ({ ...run, arm, end: run.start + run.ns, is: described[run.op] });
  arm.runs = rowsOf(stored).map(told);
  arm.lanes = [...Map.groupBy(arm.runs, ({ device }) => device)].map(([device, own]) => {
    const lane = { device };
    const ends = [];
    for (const run of own) {
      const free = ends.findIndex((end) => end <= run.start);
      run.lane = lane;
      run.row = Math.min(free < 0 ? ends.length : free, STEP_ROWS - 1);
      ends[run.row] = Math.max(run.end, ends[run.row] ?? 0);
    }
    lane.height = Math.max(1, ends.length) * STEP_ROW;
    return lane;
  });
  for (const [number, runs] of Map.groupBy(arm.runs, (run) => run.meeting)) {
    const firsts = runs.filter(({ lane }, at) => lane !== runs[at - 1]?.lane);
    if (number < 0 || firsts.length < 2) continue;
    const last = firsts.reduce((a, b) => (b.start > a.start ? b : a));
    const met = { last, runs, wait: Math.max(...runs.map(({ wait }) => wait)) };
    arm.meetings.push(met);
    for (const run of runs) run.met = met;
  }
  return arm;
}

/* The parts of a step in which a run's time lies, each with its start and end. */
function piecesOf({ is, start, end, wait }) {
  if (is.category === "control") return [["idle", start, end]];
  if (is.category !== "collective") return [[is.category, start, end]];
  const arrived = start + wait;
  const pieces = [["wait", start, arrived], ["move", arrived, end]];
  return pieces.filter(([, from, to]) => to > from);
}

/* An element with the picture, which pointer, wheel, keys and buttons move and zoom. */
function stepPicture(arms, whole) {
  const width = Math.max(200, whole - STEP_LABELS - 4);
  const runs = arms.flatMap((arm) => arm.runs);
  // Another process may end its step later than the one whose duration is stored.
  const most = Math.max(...arms.map(({ ns }) => ns), ...runs.map(({ end }) => end));
  let y = 0;
  for (const arm of arms) {
    arm.top = y;
    y += 22;
    for (const lane of arm.lanes) {
      lane.top = y;
      y += lane.height + 8;
    }
  }
  const canvas = svg("g", { transform: `translate(${STEP_LABELS},20)` });
  const size = { width: STEP_LABELS + width + 4, height: y + 20 };
  const shape = { ...size, viewBox: `0 0 ${size.width} ${size.height}`, "aria-hidden": "true" };
  const drawing = svg("svg", shape, canvas, stepLabels(arms));
  const [from, to] = chosen("span").split("-").map(Number);
  const view = {
    ...{ arms, runs, width, height: y, canvas, most, from: 0, to: most },
    x: (ns) => (width * (ns - view.from)) / (view.to - view.from),
    show(low, high) {
      const span = Math.min(most, Math.max(STEP_NARROWEST_NS, high - low));
      view.from = Math.round(Math.min(Math.max(0, low), most - span));
      view.to = Math.round(view.from + span);
      const every = view.from === 0 && view.to === most;
      choose({ span: every ? "" : `${view.from}-${view.to}` }, "step", 200);
      paintStep(view);
    },
    /* Zoom by a factor around a point, which is a share of the width. */
    zoom(factor, around = 0.5) {
      const at = view.from + around * (view.to - view.from);
      const span = Math.max(STEP_NARROWEST_NS, factor * (view.to - view.from));
      view.show(at - around * span, at + (1 - around) * span);
    },
    move(share) {
      const by = share * (view.to - view.from);
      view.show(view.from + by, view.to + by);
    },
  };
  if (to > from && from >= 0 && to <= most) Object.assign(view, { from, to });
  paintStep(view);
  const names = arms.map(({ cell }) => cell.name).join(" above ");
  const box = element("div.step", {
    ...{ tabindex: "0", role: "application", "aria-describedby": "step-keys" },
    "aria-label": `${CHARTS.step.title}: ${names}. The table below has its numbers.`,
    ...steering(view, drawing),
  }, drawing);
  const nearer = button("+", () => view.zoom(0.5), { "aria-label": "Zoom in" });
  const farther = button("\u2212", () => view.zoom(2), { "aria-label": "Zoom out" });
  const all = button("Whole step", () => view.show(0, most));
  return element("div", element("div.tools", nearer, farther, all), box);
}

function stepLabels(arms) {
  const alike = new Set(arms.map(({ cell }) => cell.name)).size < arms.length;
  const nameOf = alike ? wholeName : ({ name }) => name; // A phone has no room for all of it.
  const texts = arms.flatMap(({ cell, ns, top, lanes }) => [
    svg("text", { x: 0, y: top + 36, class: "arm" }, `${nameOf(cell)}: ${si(ns / 1e9, "s")}`),
    ...lanes.map((lane) => svg("text", { x: 0, y: lane.top + 32 }, `device ${lane.device}`)),
  ]);
  return svg("g", {}, ...texts);
}

const rowTop = ({ lane, row }) => lane.top + row * STEP_ROW;

/* Draw what lies in the shown time. */
function paintStep(view) {
  const { arms, width, height, from, to, x } = view;
  const paths = new Map(PARTS.map(({ key }) => [key, []]));
  const reached = new Map(); // The last block of each part in each row.
  const texts = [];
  const written = new Map(); // The end of the last text in each row.
  for (const run of view.runs) {
    if (run.start > to || run.end < from) continue;
    const y = rowTop(run);
    for (const [part, start, end] of piecesOf(run)) {
      const left = Math.max(0, x(start));
      const right = Math.min(width, Math.max(x(end), left + 0.5));
      if (right <= left) continue;
      const before = reached.get(`${part}/${y}`);
      if (before && left - before.right < 0.5) before.right = Math.max(before.right, right);
      else {
        const block = { left, right, y };
        reached.set(`${part}/${y}`, block);
        paths.get(part).push(block);
      }
      const letters = Math.floor((right - left - 6) / 6.2);
      const text = run.is.op || "dispatch";
      if (letters < 5 || part === "wait" || run.is.category === "control") continue;
      if (left < (written.get(y) ?? 0)) continue;
      written.set(y, right);
      texts.push(svg("text", {
        x: left + 3, y: y + 10.5, fill: LIGHT_PARTS.has(part) ? "#111" : "#fff",
      }, text.length > letters ? `${text.slice(0, letters - 1)}\u2026` : text));
    }
  }
  const lines = arms
    .flatMap(({ meetings }) => meetings)
    .filter(({ last: { start }, wait }) => start >= from && start <= to && x(from + wait) > 4)
    .flatMap((meeting) => meetingLine(meeting, x));
  const drawn = PARTS.map(({ key, colour }) =>
    svg("path", { d: paths.get(key).map(blockPath).join(""), fill: colour, "data-part": key }),
  );
  const lanes = arms.flatMap(({ ns, lanes: own }) => {
    const size = { x: 0, width: Math.min(width, Math.max(0, x(ns))) };
    return own.map(({ top: y, height }) => svg("rect", { ...size, y, height, class: "lane" }));
  });
  const ticks = evenTicks(from / 1e9, to / 1e9).map((seconds) => {
    const at = x(1e9 * seconds);
    const line = svg("path", { d: `M${at.toFixed(1)} -4V${height}`, class: "tick" });
    const anchor = { x: at, y: -8, "text-anchor": at > width - 40 ? "end" : "middle" };
    return svg("g", {}, line, svg("text", anchor, tickText(seconds, to - from)));
  });
  view.canvas.replaceChildren(...lanes, ...ticks, ...drawn, ...texts, ...lines);
}

const blockPath = ({ left, right, y }) =>
  `M${left.toFixed(2)} ${y}H${right.toFixed(2)}v${STEP_ROW - 2}H${left.toFixed(2)}z`;

/* A time with the digits that distinguish neighbouring ticks. */
function tickText(seconds, span) {
  const [unit, size] = seconds * 1e9 >= 1e6 || span >= 2e6 ? ["ms", 1e3] : ["\u00b5s", 1e6];
  const digits = Math.max(0, Math.ceil(-Math.log10((span / 1e9) * size / 8)));
  return `${(seconds * size).toFixed(digits)}${NARROW}${unit}`;
}

/* The moment at which the last device came to a collective, across the lanes of its group. */
function meetingLine({ last, runs }, x) {
  const [first, final] = [runs[0].lane, runs.at(-1).lane];
  const line = `M${x(last.start).toFixed(2)} ${first.top}V${final.top + final.height}`;
  return [
    svg("path", { d: line, class: "meeting" }),
    svg("circle", { cx: x(last.start), cy: last.lane.top + STEP_ROW / 2 - 1, r: 3 }),
  ];
}

/* The operation at a point of the picture, or the nearest within two pixels. */
function runAt({ runs, width, from, to }, px, py) {
  const at = from + (px / width) * (to - from);
  const near = (2 / width) * (to - from);
  const away = (run) => Math.max(run.start - at, at - run.end, 0);
  const isNear = (run) => Math.floor((py - rowTop(run)) / STEP_ROW) === 0 && away(run) <= near;
  return runs.filter(isNear).sort((a, b) => away(a) - away(b) || a.ns - b.ns)[0];
}

/* What is known about a run, line by line. */
function runTold(run) {
  const { arm, device, is: { op, source, shapes }, met } = run;
  const lines = [
    `${partNamed(run)}, ${si(run.ns / 1e9, "s")}, ${percent(run.ns / arm.ns)} of the step`,
    `device ${device}, from ${si(run.start / 1e9, "s")} on`,
  ];
  if (met && met.last.device === device) lines.push("the last of its group to come");
  else if (met) lines.push(`waited ${si(run.wait / 1e9, "s")} for device ${met.last.device}`);
  return [op || "dispatch", source, shapes, ...lines].filter(Boolean);
}

/* The listeners with which keys, wheel and pointers move and zoom the picture. */
function steering(view, drawing) {
  const place = ({ clientX, clientY }) => {
    const { left, top } = drawing.getBoundingClientRect();
    return [clientX - left - STEP_LABELS, clientY - top - 20];
  };
  let before; // Where the pointer was.
  const point = (event) => {
    before = event.clientX;
    const run = runAt(view, ...place(event));
    tip.hidden = true;
    if (run) showTip(event, runTold(run));
  };
  const keys = {
    ArrowLeft: () => view.move(-0.1),
    ArrowRight: () => view.move(0.1),
    "+": () => view.zoom(0.5),
    "=": () => view.zoom(0.5),
    "-": () => view.zoom(2),
    Home: () => view.show(0, view.most),
  };
  return {
    onkeydown(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    },
    // Until the picture is clicked, the wheel scrolls the page.
    onwheel(event) {
      if (!event.ctrlKey && document.activeElement !== event.currentTarget) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) view.move(event.deltaX / view.width);
      else view.zoom(1.002 ** event.deltaY, Math.min(1, Math.max(0, place(event)[0] / view.width)));
    },
    onpointerdown: point,
    onpointermove(event) {
      if (event.buttons) view.move((before - event.clientX) / view.width);
      point(event);
    },
    onpointerleave() {
      tip.hidden = true;
    },
  };
}
