// The rest of a training step, beside what it computes: its input.

const INPUTS = rowsOf(DATA.inputs);

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
        { ...NAME, value: (row) => CELLS[row.cell].name },
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
