// Where the arrays of one cell lie: its mesh, and the shards of each parameter.

const MOST_SHARDS = 64; // Of an array, as blocks.

GROUPS.arrays = (target) => {
  const stored = byPlace(CELLS.filter((cell) => cell.layout));
  if (!stored.length) return null;
  const cell = [named("arrays"), currentCell()].find((one) => stored.includes(one)) ?? stored[0];
  const names = stored.map((one) => [one.full, wholeName(one)]);
  const made = expanded(cell.layout).then((layout) => placed(cell, layout));
  const which = choices(selector("Cell", "arrays", names, "arrays", cell.full));
  return [which, drawLater(element("div"), made)];
};

function placed(cell, { axes, devices, parameters, device_bytes: held }) {
  const { title, note } = CHARTS.arrays;
  const size = devices.flat().length;
  const general = (path) => path.replace(/\b\d+\b/g, "N");
  const kindOf = ({ path, ...rest }) => JSON.stringify([general(path), rest]);
  const alike = Map.groupBy(parameters, kindOf);
  const rows = [...alike.values()].map((own) => {
    const [{ path, shape, dtype, parts, bytes: whole, device_bytes: one }] = own;
    const copies = parts[0].devices.length;
    const divided = copies > 1 ? "divided, with copies" : "divided";
    const entire = copies === size ? "on every device" : `on ${copies} devices`;
    const way = parts.length > 1 ? divided : copies > 1 ? entire : "on one device";
    return {
      ...{ path: own.length > 1 ? general(path) : path, count: own.length },
      detail: { path: own.length > 1 ? `${own.length} alike` : "" },
      ...{ shape: `${dtype}[${shape.join(", ")}]`, way },
      ...{ whole, one, parts, shards: parts.map((part) => listed(part.devices)).join(" | ") },
    };
  });
  const total = (key, some = rows) => some.reduce((sum, row) => sum + row.count * row[key], 0);
  const replicated = total("whole", rows.filter(({ way }) => way === "on every device"));
  const summary =
    `Of ${bytes(total("whole"))} of parameters, a device holds at most ${bytes(total("one"))}. ` +
    (size > 1 ? `${replicated ? bytes(replicated) : "Nothing"} of it is on every device.` : "");
  const columns = [
    { key: "path", title: "Parameter" },
    { key: "shards", title: "Shards", long: true, format: (_, row) => shardBlocks(row, size) },
    { key: "way", title: "Placement" },
    { key: "shape", title: "Shape" },
    number("whole", "Whole", "bytes"),
    number("one", "A device", "bytes", "at most"),
  ];
  return [
    meshPicture(axes, devices, held),
    element("p", summary),
    element("p.note", note),
    makeTable({ title: `${title}, ${cell.full}`, name: "arrays", rows, columns }),
  ];
}

/* The devices of a mesh, its last axis across, each with the bytes that it holds. */
function meshPicture(axes, devices, held) {
  const across = axes.at(-1)[0];
  const down = axes.slice(0, -1).map(([name]) => name);
  const shape = axes.map(([name, size]) => `${name}=${size}`).join(", ");
  const field = (device) => {
    const kinds = ["parameters", "state", "batch"];
    const [own, state, batch] = kinds.map((kind) => held[kind]?.[device] ?? 0);
    const lines = [
      bytes(state + batch),
      `${bytes(own)} parameters`,
      `${bytes(state - own)} optimizer and others`,
      `${bytes(batch)} batch`,
    ].map((text) => element("small", text));
    return element("td", element("b", `device ${device}`), ...lines);
  };
  const below = down.length ? `, ${down.join(", ")} down` : "";
  const caption = `Mesh ${shape}: ${across} runs across${below}`;
  const body = element("tbody", ...devices.map((row) => element("tr", ...row.map(field))));
  return scrolled(caption, element("table.mesh", element("caption", caption), body));
}

/* The shards of an array as blocks, the last divided dimension across. */
function shardBlocks({ parts }, size) {
  const shown = parts.slice(0, MOST_SHARDS);
  const starts = (dimension) => unique(parts.map(({ index }) => index[dimension][0])).length;
  const divided = parts[0].index.map((_, dimension) => starts(dimension)).filter((n) => n > 1);
  const blocks = shown.map(({ devices }, place) => {
    const whole = devices.length === size;
    const text = whole && size > 1 ? "every device" : listed(devices);
    const block = element("span", { class: whole ? "shard all" : "shard" }, text);
    const colour = `color-mix(in oklab, var(--c${place % 8}) 28%, transparent)`;
    if (!whole) block.style.background = colour;
    return block;
  });
  const box = element("div.shards", ...blocks);
  box.style.gridTemplateColumns = `repeat(${divided.at(-1) ?? 1}, minmax(1.6rem, 1fr))`;
  const more = parts.length - shown.length;
  return element("div", box, more ? element("small", `and ${more} more`) : "");
}

/* Numbers with runs of neighbours shortened: 0, 2\u20135. */
function listed(numbers) {
  const runs = [...Map.groupBy(numbers, (each) => each - numbers.indexOf(each)).values()];
  const text = (run) => (run.length > 2 ? `${run[0]}\u2013${run.at(-1)}` : run.join(", "));
  return runs.map(text).join(", ");
}
