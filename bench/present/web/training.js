// What training needs beside its steps: input, checkpoints, and room for its batch.

const INPUTS = rowsOf(DATA.inputs);
const CHECKPOINTS = rowsOf(DATA.checkpoints);
const LARGEST = rowsOf(DATA.largest);

/* What input costs a cell, as facts of it. */
function inputFacts(cell) {
  return INPUTS.filter((row) => row.cell === cell.number).map((row) => [
    `Input ${row.way}`,
    known(row.ratio)
      ? `${ratio(row.ratio)} ${interval(row.low, row.high, ratio)} of the step time on a resident batch, ${row.verdict}; a step waits ${si(row.wait, "s")} for it, ${si(row.latency_wait, "s")} where each step is waited for`
      : row.reason || "no samples",
  ]);
}

function drawInputs() {
  byId("inputs").hidden = !INPUTS.length;
  if (!INPUTS.length) return;
  const right = "right";
  const time = (value) => si(value, "s");
  byId("given").replaceChildren(
    makeTable({
      title: "Input, against a resident batch",
      name: "inputs",
      rows: INPUTS,
      columns: [
        CELL,
        { key: "way", title: "Input", filter: true, detail: (row) => row.reason },
        {
          key: "step",
          title: "Step time",
          note: "on a resident batch",
          text: time,
          align: right,
          detail: (row) => time(CELLS[row.cell].step),
        },
        {
          key: "ratio",
          title: "Ratio",
          note: "95 % interval",
          text: ratio,
          align: right,
          detail: (row) => interval(row.low, row.high, ratio),
        },
        { key: "verdict", title: "Verdict", filter: true },
        { key: "wait", title: "Waits for input", note: "a step", text: time, align: right },
        {
          key: "starved",
          title: "Devices idle for it",
          note: "a step, at most",
          text: time,
          align: right,
        },
        {
          key: "latency_wait",
          title: "Waits",
          note: "each step waited for",
          text: time,
          align: right,
        },
      ],
    }),
  );
}

/* What saving and restoring a cell's state takes, as facts of it. */
function checkpointFacts(cell) {
  return CHECKPOINTS.filter((row) => row.cell === cell.number).map((row) => [
    row.what ? `Checkpoint: ${row.what}` : "Checkpoint",
    row.reason ||
      `${si(row.total, "s")} (${si(row.total_low, "s")} to ${si(row.total_high, "s")}), ${si(row.rate, "B/s")}` +
        (known(row.blocking) && row.blocking < row.total
          ? `; training waits ${si(row.blocking, "s")}`
          : "") +
        (known(row.during)
          ? `, and a step takes ${si(row.during, "s")} meanwhile, ${si(row.before, "s")} before`
          : "") +
        (known(row.held) ? `; a device holds ${bytes(row.held)}` : ""),
  ]);
}

function drawCheckpoints() {
  byId("checkpoints").hidden = !CHECKPOINTS.length;
  if (!CHECKPOINTS.length) return;
  const right = "right";
  const time = (value) => si(value, "s");
  byId("saved").replaceChildren(
    makeTable({
      title: "Checkpoints",
      name: "checkpoints",
      rows: CHECKPOINTS,
      columns: [
        CELL,
        { key: "what", title: "What", filter: true, align: "long", detail: (row) => row.reason },
        {
          key: "total",
          title: "Takes",
          note: "median, range",
          text: time,
          align: right,
          detail: (row) => interval(row.total_low, row.total_high, time),
        },
        {
          key: "blocking",
          title: "Blocks training",
          note: "median, range",
          text: time,
          align: right,
          detail: (row) => interval(row.blocking_low, row.blocking_high, time),
        },
        {
          key: "rate",
          title: "Bandwidth",
          note: "of the state",
          text: (value) => si(value, "B/s"),
          align: right,
        },
        {
          key: "stored",
          title: "Files",
          note: "of a state of",
          text: bytes,
          align: right,
          detail: (row) => bytes(row.state),
        },
        {
          key: "during",
          title: "A step meanwhile",
          note: "before",
          text: time,
          align: right,
          detail: (row) => (known(row.during) ? time(row.before) : ""),
        },
        {
          key: "held",
          title: "A device holds",
          note: "most of one array while restoring",
          text: bytes,
          align: right,
          detail: (row) => (known(row.seen) ? bytes(row.seen) : ""),
        },
        { key: "file_system", title: "File system", filter: true },
      ],
    }),
  );
}

function drawLargest() {
  byId("largest").hidden = !LARGEST.length;
  if (!LARGEST.length) return;
  const right = "right";
  byId("fitting").replaceChildren(
    makeTable({
      title: "Largest batch that fits",
      name: "max_batch",
      rows: LARGEST,
      columns: [
        { key: "implementation", title: "Implementation", filter: true },
        { key: "subject", title: "Workload", filter: true, align: "long" },
        { key: "mesh", title: "Mesh", filter: true },
        {
          key: "batch",
          title: "Batch",
          note: "global",
          align: right,
          detail: (row) => row.refuted && `${row.refuted} ran out of memory`,
        },
        { key: "status", title: "Status", filter: true, detail: (row) => row.reason },
        {
          key: "predicted",
          title: "A device holds",
          note: "as planned",
          text: bytes,
          align: right,
        },
        { key: "peak", title: "Held", note: "as measured", text: bytes, align: right },
        {
          key: "limit",
          title: "May hold",
          text: bytes,
          align: "right long",
          detail: (row) => row.limit_is,
        },
        {
          key: "next_batch",
          title: "Too large",
          note: "planned or run",
          align: right,
          detail: (row) => (known(row.next) ? bytes(row.next) : ""),
        },
      ],
    }),
  );
}
