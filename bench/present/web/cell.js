// All about one cell.

/* Choices that make no sense for another subject. */
const OF_SUBJECT = { mesh: "", batch: "", off: "", curve: "", along: "", cell: "", all: "" };

/* Go to all about a cell; the way back is the browser's. */
function open(cell) {
  const other = cell.of.subject !== subjectNumber();
  history.pushState(null, "", location.href);
  choose({ ...(other ? OF_SUBJECT : {}), subject: cell.of.subjectName, cell: cell.full }, "cell");
  if (other) {
    syncControls();
    redraw();
  }
  drawCell();
  byId("cell").scrollIntoView();
  byId("one").querySelector("h3").focus({ preventScroll: true });
}

function currentCell() {
  const asked = CELL_OF.get(chosen("cell"));
  if (asked) return asked;
  const own = CELLS.filter((cell) => cell.of.subject === subjectNumber());
  return (
    own.find((cell) => cell.traced?.main) ??
    own.find((cell) => cell.verdict && cell.paired) ??
    own[0] ??
    CELLS[0]
  );
}

function drawCell() {
  const target = byId("one");
  const cell = currentCell();
  if (!cell) return;
  const block = cell.of;
  const width = Math.min(420, widthOf(target) - 80);
  const facts = [
    [
      "Step time",
      known(cell.step)
        ? `${si(cell.step, "s")} (${si(cell.step_low, "s")} to ${si(cell.step_high, "s")}, quartiles)`
        : "",
    ],
    [
      "Latency",
      known(cell.latency)
        ? `${si(cell.latency, "s")} (${si(cell.latency_low, "s")} to ${si(cell.latency_high, "s")})`
        : "",
    ],
    [
      "Throughput",
      known(cell.rate) ? `${si(cell.rate, "")} ${cell.unit} a second`.replace("  ", " ") : "",
    ],
    [
      "To baseline",
      cell.isBaseline
        ? "it is the baseline"
        : known(cell.ratio)
          ? `${ratio(cell.ratio)} ${interval(cell.ratio_low, cell.ratio_high, ratio)}`
          : "",
    ],
    ["Verdict", [verdictOf(cell), whyUndecided(cell)].filter(Boolean).join(", ")],
    [
      "Compile",
      known(cell.compiling)
        ? `${seconds(cell.compiling)}: trace ${seconds(cell.trace)}, lower ${seconds(cell.lower)}, compile ${seconds(cell.compile)}${cell.cached ? ", cached" : ""}`
        : "",
    ],
    [
      "Memory a device",
      known(cell.memory)
        ? `${bytes(cell.memory)} planned: arguments ${bytes(cell.arguments)}, outputs ${bytes(cell.outputs)} (${bytes(cell.reused)} reused), temporaries ${bytes(cell.temporaries)}${known(cell.high_water) ? `; ${bytes(cell.high_water)} measured` : ""}`
        : "",
    ],
    [
      "Sends a step",
      cell.wire === 0
        ? "nothing"
        : known(cell.wire)
          ? `${bytes(cell.wire)} a device${cell.collectives ? `: ${cell.collectives}` : ""}`
          : "",
    ],
    [
      "Work",
      known(cell.compiled_flops)
        ? `${si(cell.compiled_flops, "FLOP")} compiled${known(cell.traced_flops) ? `, ${si(cell.traced_flops, "FLOP")} traced` : ""}, ${si(cell.model_flops, "FLOP")} by the model; ${bytes(cell.accessed)} accessed`
        : "",
    ],
    [
      "Energy a step",
      known(cell.joules)
        ? `${si(cell.joules, "J")} (\u00b1 ${si(cell.joules_error, "J")}), ${significant(cell.per_joule)} ${cell.unit} per joule, ${si(cell.watts, "W")}`
        : "",
    ],
    ["Of the roof", known(cell.roof) ? percent(cell.roof) : ""],
    ["MFU", known(cell.mfu) ? percent(cell.mfu) : ""],
    [
      "Bubble",
      known(cell.bubble) && cell.bubble > 0
        ? `${percent(cell.bubble)} by its schedule${known(cell.idle) ? `, ${percent(cell.idle)} measured with the update` : ""}`
        : "",
    ],
    ...inputFacts(cell),
    ...checkpointFacts(cell),
    ["Proof", known(cell.proof) ? `largest error ${percent(cell.proof)} of what is allowed` : ""],
  ].filter(([, text]) => text);
  const parts = [
    element("h3", { tabindex: "-1" }, cell.full),
    cell.status === "ok"
      ? ""
      : element("p", { class: "reason" }, element("b", {}, `${cell.status}: `), cell.reason),
    ...[cell.traced?.why, cell.traced?.why_fastest]
      .filter(Boolean)
      .map((text) => element("p", {}, text)),
    element(
      "dl",
      { class: "facts" },
      ...facts.map(([name, text]) =>
        element("div", {}, element("dt", {}, name), element("dd", {}, text)),
      ),
    ),
    element(
      "p",
      {},
      ...(cell.traced ? [traceLink(cell), " in TensorBoard (nox -s tensorboard) \u00b7 "] : []),
      "again: ",
      element("code", {}, commandOf(cell)),
      " ",
      copyButton(() => commandOf(cell)),
    ),
  ];
  const samples = distribution(cell, width);
  if (samples) parts.push(samples);
  if (cell.traced?.causes?.length) {
    parts.push(
      element(
        "h4",
        {},
        `What its step does longer, or less, than ${IMPLEMENTATIONS[block.baseline]}'s`,
      ),
      makeTable({
        title: `Causes, ${cell.full}`,
        name: "causes",
        rows: cell.traced.causes,
        columns: [
          { key: "what", title: "Cause", value: (row) => row[0], detail: (row) => row[5] },
          {
            key: "difference",
            title: "Difference",
            value: (row) => row[1],
            text: (value) => `${value > 0 ? "+" : ""}${si(value, "s")}`,
            align: "right",
            detail: (row) => (cell.traced.whole ? percent(row[1] / cell.traced.whole) : ""),
          },
          {
            key: "here",
            title: cell.name,
            note: "as traced",
            value: (row) => row[2],
            text: (value) => si(value, "s"),
            align: "right",
          },
          {
            key: "there",
            title: IMPLEMENTATIONS[block.baseline],
            note: "as traced",
            value: (row) => row[3],
            text: (value) => si(value, "s"),
            align: "right",
          },
          { key: "source", title: "Source", value: (row) => row[4], align: "long" },
        ],
      }),
    );
  }
  if (block.facts.length) {
    parts.push(
      element("h4", {}, `Its block, ${block.place}`),
      element("ul", { class: "remarks" }, ...block.facts.map((text) => element("li", {}, text))),
    );
  }
  clear(target);
  target.replaceChildren(...parts.filter(Boolean));
}

function distribution(cell, width) {
  const { samples, launch, margin, baseline } = cell.of;
  const own = samples[cell.implementation];
  if (!own || cell.status !== "ok") return null;
  const arms = [[cell.name, own, colourOf(cell.implementation)]];
  const other = samples[baseline];
  if (!cell.isBaseline && other)
    arms.push([`${IMPLEMENTATIONS[baseline]} (baseline)`, other, "var(--ink)"]);
  if (samples.twin) arms.push([`its second copy`, samples.twin, "var(--muted)"]);
  // Workers that did not have the cell do not count.
  const workers = [...new Set(launch.filter((_, number) => known(own[number])))];
  const rows = arms
    .flatMap(([name, values]) =>
      values.map((value, number) => ({
        name,
        round: number + 1,
        launch: workers.indexOf(launch[number]) + 1,
        value: known(value) ? value / 1e6 : null,
      })),
    )
    .filter((row) => known(row.value) && row.launch);
  const figures = [
    figure({
      title: `Distribution of step times, ${cell.full}`,
      spec: distributionChart(rows, {
        width,
        title: "Distribution of step times",
        names: arms.map(([name]) => name),
        colours: arms.map(([, , colour]) => colour),
      }),
      table: () => ({
        name: "samples",
        rows,
        columns: [
          { key: "name", title: "Arm", filter: true },
          { key: "launch", title: "Launch", align: "right", filter: true },
          { key: "round", title: "Round", align: "right" },
          { key: "value", title: "Step time", text: (value) => si(value, "s"), align: "right" },
        ],
      }),
    }),
  ];
  if (!cell.isBaseline && other) {
    const paired = own
      .flatMap((value, number) =>
        known(value) && known(other[number])
          ? [{ launch: workers.indexOf(launch[number]) + 1, ratio: value / other[number] }]
          : [],
      )
      .map((row, number) => ({ round: number + 1, ...row }));
    if (paired.length) {
      figures.push(
        figure({
          title: `Ratio round by round, ${cell.full}`,
          spec: driftChart(paired, { width, margin, title: "Is the ratio steady?" }),
          table: () => ({
            name: "rounds",
            rows: paired,
            columns: [
              { key: "round", title: "Round", align: "right" },
              { key: "launch", title: "Launch", align: "right" },
              { key: "ratio", title: "Ratio", text: ratio, align: "right" },
            ],
          }),
        }),
      );
    }
  }
  const order = cell.of.order.map(
    ([by, size, sure]) => `${by} ${percent(size)}${sure ? "" : " (no more than chance)"}`,
  );
  return element(
    "div",
    {},
    element("div", { class: "panels" }, ...figures),
    order.length
      ? element(
          "p",
          { class: "note" },
          `Effects of the order of turns in this block: ${order.join(", ")}. Every arm has every place, and every other before it, about equally often.`,
        )
      : "",
  );
}

function copyButton(text) {
  const button = element("button", { type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "The browser does not allow it";
    }
    setTimeout(() => {
      button.textContent = "Copy";
    }, 2000);
  });
  return button;
}
