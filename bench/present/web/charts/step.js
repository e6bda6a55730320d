// One traced step of each compared cell, above one another on one scale of time.

GROUPS.step = (target) => {
  const stored = ({ traced }) => traced?.drawn;
  if (!CELLS.some(stored)) return null;
  const left = DATA.steps_left_out;
  const more = left ? nothing(`${CHARTS.step.remarks.steps} ${left}.`) : "";
  const cells = unique(comparedPair()).filter(stored);
  if (!cells.length) return [nothing("The page has no step of A or B."), more];
  const armed = cells.map(async (cell) => armOf(cell, await expanded(cell.traced.drawn)));
  const made = Promise.all(armed).then((arms) => stepFigure(arms, widthOf(target)));
  return [drawLater(element("div"), made), more];
};

const wholeName = (cell) => `${cell.name}, ${whereOf(cell)}`;

/* The picture, its legend, who waited for whom, and the table behind it. */
function stepFigure(arms, width) {
  const { title, note, remarks, table: columns } = CHARTS.step;
  const picture = stepPicture(arms, width);
  const runs = arms.flatMap((arm) => arm.runs);
  const shown = new Set(runs.flatMap(piecesOf).map(([part]) => part));
  const legend = PARTS.filter(({ key }) => shown.has(key)).map(({ key, title: name, colour }) =>
    element("span", swatch("\u25a0", colour), ` ${key === "idle" ? "idle in a loop" : name}`),
  );
  const rows = () =>
    runs.map(({ arm: { cell, ns }, ...run }) => ({
      ...{ cell: cell.number, name: cell.name, device: run.device, ...run.is, part: partNamed(run) },
      ...{ start: run.start / 1e9, seconds: run.ns / 1e9, wait: run.wait / 1e9 || null },
      share: run.ns / ns,
    }));
  const waits = arms.flatMap(waitSentences).map((text) => element("li", text));
  const left = arms.filter(({ leftOut }) => leftOut);
  const more = arms.flatMap(({ cell }) => [`${cell.name}: `, traceLink(cell), ". "]);
  const below = [
    element("p.note", { id: "step-keys" }, remarks.keys),
    element("figcaption", note, " More in TensorBoard: ", ...more),
    ...left.map(({ cell, leftOut }) => nothing(`${cell.name} ${remarks.operations} ${leftOut}.`)),
    element("ul.remarks", ...waits),
    numbersBehind("step", () => ({ title, rows: rows(), columns })),
  ];
  return [element("figure", element("p.legend", ...legend), picture, ...below)];
}

const partNamed = ({ is: { category } }) =>
  PARTS.find(({ key }) => key === category)?.title ?? (category === "control" ? "loop" : category);

/* Who waited for whom in an arm's collectives, in sentences. */
function waitSentences({ cell, runs, oneClock }) {
  if (!oneClock)
    return [`${cell.name}: its hosts share no clock, so each process's step starts at 0.`];
  const waits = runs.filter(({ device, met, wait }) => wait && met && met.last.device !== device);
  if (!waits.length) return [`${cell.name}: no device waited for another.`];
  const pairs = Map.groupBy(waits, ({ device, met }) => `${device}/${met.last.device}`);
  const texts = [...pairs.values()]
    .map((own) => ({ ...own[0], ns: own.reduce((sum, { wait }) => sum + wait, 0) }))
    .sort((a, b) => b.ns - a.ns)
    .slice(0, 4)
    .map(({ device, met, ns }) =>
      `device ${device} waited ${si(ns / 1e9, "s")} for device ${met.last.device}`,
    );
  return [`${cell.name}: ${texts.join("; ")}.`];
}
