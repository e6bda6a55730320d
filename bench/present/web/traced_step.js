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

/* A cell and its step: lanes by device, and the meetings of devices in collectives. */
function armOf(cell, { ns, one_clock: oneClock, left_out: leftOut, ops, runs }) {
  const described = rowsOf(ops);
  const all = rowsOf(runs).map((run) => ({ ...run, is: described[run.op] }));
  const lanes = [...Map.groupBy(all, ({ device }) => device)].map(([device, own]) => {
    const ends = [];
    for (const run of own) {
      const free = ends.findIndex((end) => end <= run.start);
      run.row = Math.min(free < 0 ? ends.length : free, STEP_ROWS - 1);
      ends[run.row] = Math.max(run.start + run.ns, ends[run.row] ?? 0);
    }
    return { device, runs: own, rows: Math.max(1, ends.length) };
  });
  const meetings = new Map();
  for (const [meeting, own] of Map.groupBy(all, (run) => run.meeting)) {
    const devices = [...Map.groupBy(own, ({ device }) => device)];
    if (meeting < 0 || devices.length < 2) continue;
    const first = (runs) => Math.min(...runs.map(({ start }) => start));
    const came = devices.map(([device, runs]) => [device, first(runs)]);
    const [last, at] = came.reduce((a, b) => (b[1] > a[1] ? b : a));
    meetings.set(meeting, { last, at, runs: own, wait: Math.max(...own.map(({ wait }) => wait)) });
  }
  return { cell, ns, oneClock, leftOut, lanes, meetings };
}

/* The parts of a step in which a run's time lies, each with its start and end. */
function piecesOf({ is, start, ns, wait }) {
  const end = start + ns;
  if (is.category === "control") return [["idle", start, end]];
  if (is.category !== "collective") return [[is.category, start, end]];
  const arrived = start + wait;
  const pieces = [["wait", start, arrived], ["move", arrived, end]];
  return pieces.filter(([, from, to]) => to > from);
}

/* An element with the picture, which pointer, wheel, keys and buttons move and zoom. */
function stepPicture(arms, whole) {
  const width = Math.max(200, whole - STEP_LABELS - 4);
  // Another process may end its step later than the one whose duration is stored.
  const endsOf = ({ ns, lanes }) =>
    lanes.flatMap(({ runs }) => runs.map((run) => run.start + run.ns)).concat(ns);
  const most = Math.max(...arms.flatMap(endsOf));
  const [from, to] = chosen("span").split("-").map(Number);
  const view = { arms, width, most, from: 0, to: most, held: null };
  if (to > from && from >= 0 && to <= most) Object.assign(view, { from, to });
  let y = 0;
  for (const arm of arms) {
    arm.top = y;
    y += 22;
    for (const lane of arm.lanes) {
      lane.top = y;
      lane.height = lane.rows * STEP_ROW;
      y += lane.height + 8;
    }
  }
  view.height = y;
  view.canvas = svg("g", { transform: `translate(${STEP_LABELS},20)` });
  const size = { width: STEP_LABELS + width + 4, height: y + 20 };
  const shape = { ...size, viewBox: `0 0 ${size.width} ${size.height}`, "aria-hidden": "true" };
  const drawing = svg("svg", shape, stepLabels(arms), view.canvas);
  const names = arms.map(({ cell }) => cell.name).join(" above ");
  const box = element("div", {
    ...{ class: "step", tabindex: "0", role: "application", "aria-describedby": "step-keys" },
    "aria-label": `${CHARTS.step.title}: ${names}. The table below has its numbers.`,
  }, drawing);
  view.show = (low, high) => {
    const span = Math.min(most, Math.max(STEP_NARROWEST_NS, high - low));
    view.from = Math.round(Math.min(Math.max(0, low), most - span));
    view.to = Math.round(view.from + span);
    const every = view.from === 0 && view.to === most;
    choose({ span: every ? "" : `${view.from}-${view.to}` }, "step", 200);
    paintStep(view);
  };
  /* Zoom by a factor around a point, which is a share of the width. */
  view.zoom = (factor, around = 0.5) => {
    const at = view.from + around * (view.to - view.from);
    const span = Math.max(STEP_NARROWEST_NS, factor * (view.to - view.from));
    view.show(at - around * span, at + (1 - around) * span);
  };
  view.move = (share) => {
    const by = share * (view.to - view.from);
    view.show(view.from + by, view.to + by);
  };
  paintStep(view);
  steerStep(view, box, drawing);
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

/* Draw what lies in the shown time. */
function paintStep(view) {
  const { arms, width, height, from, to } = view;
  const x = (ns) => (width * (ns - from)) / (to - from);
  const paths = new Map(PARTS.map(({ key }) => [key, []]));
  const texts = [];
  const lines = [];
  for (const { lanes, meetings } of arms) {
    for (const lane of lanes) {
      const reached = new Map(); // The last block of each part in each row.
      for (const run of lane.runs) {
        if (run.start > to || run.start + run.ns < from) continue;
        const y = lane.top + run.row * STEP_ROW;
        for (const [part, start, end] of piecesOf(run)) {
          const left = Math.max(0, x(start));
          const right = Math.min(width, Math.max(x(end), left + 0.5));
          if (right <= left) continue;
          const before = reached.get(`${part}/${run.row}`);
          if (before && left - before.right < 0.5) before.right = Math.max(before.right, right);
          else {
            const block = { left, right, y };
            reached.set(`${part}/${run.row}`, block);
            paths.get(part).push(block);
          }
          const letters = Math.floor((right - left - 6) / 6.2);
          const text = run.is.op || "dispatch";
          if (letters > 4 && part !== "wait" && run.is.category !== "control")
            texts.push(svg("text", {
              x: left + 3, y: y + 10.5, fill: LIGHT_PARTS.has(part) ? "#111" : "#fff",
            }, text.length > letters ? `${text.slice(0, letters - 1)}\u2026` : text));
        }
      }
    }
    for (const meeting of meetings.values())
      if (meeting.at >= from && meeting.at <= to && x(from + meeting.wait) > 4)
        lines.push(...meetingLine(lanes, meeting, x));
  }
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
  view.mark = svg("g", { class: "held" });
  view.canvas.replaceChildren(...lanes, ...ticks, ...drawn, ...texts, ...lines, view.mark);
  markHeld(view);
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
function meetingLine(lanes, { last, at, runs }, x) {
  const own = lanes.filter(({ device }) => runs.some((run) => run.device === device));
  const row = lanes.find(({ device }) => device === last);
  const [top, bottom] = [own[0].top, own.at(-1).top + own.at(-1).height];
  return [
    svg("path", { d: `M${x(at).toFixed(2)} ${top}V${bottom}`, class: "meeting" }),
    svg("circle", { cx: x(at), cy: row.top + STEP_ROW / 2 - 1, r: 3 }),
  ];
}

/* Outline the operation under the pointer, and those that it meets. */
function markHeld(view) {
  const { held, width, from, to } = view;
  view.mark.replaceChildren();
  if (!held) return;
  const x = (ns) => Math.min(width, Math.max(0, (width * (ns - from)) / (to - from)));
  const meeting = held.arm.meetings.get(held.run.meeting);
  for (const run of meeting?.runs ?? [held.run]) {
    const { top } = held.arm.lanes.find(({ device }) => device === run.device);
    const [left, right] = [x(run.start), x(run.start + run.ns)];
    const size = { width: right - left, height: STEP_ROW - 2 };
    if (right > left)
      view.mark.append(svg("rect", { x: left, y: top + run.row * STEP_ROW, ...size }));
  }
  if (meeting) view.mark.append(...meetingLine(held.arm.lanes, meeting, x));
}

/* The operation at a point of the picture, or the nearest within two pixels. */
function runAt({ arms, width, from, to }, px, py) {
  const at = from + (px / width) * (to - from);
  const near = (2 / width) * (to - from);
  for (const arm of arms)
    for (const lane of arm.lanes) {
      if (py < lane.top || py >= lane.top + lane.height) continue;
      const row = Math.floor((py - lane.top) / STEP_ROW);
      const away = (run) => Math.max(run.start - at, at - run.start - run.ns, 0);
      const found = lane.runs
        .filter((run) => run.row === row && away(run) <= near)
        .sort((a, b) => away(a) - away(b) || a.ns - b.ns)[0];
      if (found) return { arm, run: found };
    }
  return null;
}

/* What is known about a run, line by line. */
function runTold({ arm, run }) {
  const { op, source, shapes } = run.is;
  const lines = [
    `${partNamed(run)}, ${si(run.ns / 1e9, "s")}, ${percent(run.ns / arm.ns)} of the step`,
    `device ${run.device}, from ${si(run.start / 1e9, "s")} on`,
  ];
  const meeting = arm.meetings.get(run.meeting);
  if (meeting && meeting.last === run.device) lines.push("the last of its group to come");
  else if (meeting) lines.push(`waited ${si(run.wait / 1e9, "s")} for device ${meeting.last}`);
  return [op || "dispatch", source, shapes, ...lines].filter(Boolean);
}

function steerStep(view, box, drawing) {
  const pointers = new Map();
  const place = ({ clientX, clientY }) => {
    const { left, top } = drawing.getBoundingClientRect();
    return [clientX - left - STEP_LABELS, clientY - top - 20];
  };
  const hold = (event) => {
    view.held = event ? runAt(view, ...place(event)) : null;
    markHeld(view);
    tip.hidden = true;
    if (view.held) showTip(event, runTold(view.held));
  };
  const keys = {
    ArrowLeft: () => view.move(-0.1),
    ArrowRight: () => view.move(0.1),
    "+": () => view.zoom(0.5),
    "=": () => view.zoom(0.5),
    "-": () => view.zoom(2),
    Home: () => view.show(0, view.most),
  };
  box.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  // Until the picture is clicked, the wheel scrolls the page.
  box.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== box) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) view.move(event.deltaX / view.width);
    else view.zoom(1.002 ** event.deltaY, Math.min(1, Math.max(0, place(event)[0] / view.width)));
  }, { passive: false });
  box.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, place(event)[0]);
    hold(event);
  });
  box.addEventListener("pointermove", (event) => {
    if (!pointers.has(event.pointerId)) return hold(event);
    const before = pointers.get(event.pointerId);
    const now = place(event)[0];
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    pointers.set(event.pointerId, now);
    if (!known(other)) return view.move((before - now) / view.width);
    const factor = Math.abs(before - other) / Math.max(1, Math.abs(now - other));
    return view.zoom(factor, other / view.width);
  });
  for (const end of ["pointerup", "pointercancel", "pointerleave"])
    box.addEventListener(end, (event) => {
      pointers.delete(event.pointerId);
      if (end !== "pointerup") hold(null);
    });
}
