// What the reader chooses with.

function selector(label, key, options, value, group) {
  const select = element(
    "select",
    { id: `choose-${key}` },
    ...options.map(([option, text]) => element("option", { value: option }, text)),
  );
  select.value = value;
  select.addEventListener("change", () => {
    choose({ [key]: select.value });
    redraw([group]);
  });
  return element("span", {}, element("label", { for: select.id }, label), " ", select);
}

function fill(select, options, value) {
  select.replaceChildren(
    ...options.map(([option, text]) => element("option", { value: option }, text)),
  );
  select.value = options.some(([option]) => option === value) ? value : (options[0]?.[0] ?? "");
}

function syncControls() {
  const subject = subjectNumber();
  const own = BLOCKS.filter((block) => block.subject === subject);
  fill(
    byId("subject"),
    DATA.subjects.map((name) => [name, name]),
    DATA.subjects[subject],
  );
  fill(
    byId("mesh"),
    [["", "all"], ...[...new Set(own.map((block) => block.mesh))].map((mesh) => [mesh, mesh])],
    chosen("mesh"),
  );
  fill(
    byId("batch"),
    [
      ["", "all"],
      ...[...new Set(own.map((block) => block.batch))]
        .sort((a, b) => a - b)
        .map((batch) => [String(batch), String(batch)]),
    ],
    chosen("batch"),
  );
  const off = hidden();
  const present = new Set(
    CELLS.filter((cell) => cell.of.subject === subject && cell.status === "ok").map(
      (cell) => cell.arm,
    ),
  );
  byId("implementations").replaceChildren(
    ...[...present]
      .sort((a, b) => a - b)
      .map((number) => {
        const name = IMPLEMENTATIONS[number];
        const box = element("input", { type: "checkbox", checked: !off.has(name) });
        box.addEventListener("change", () => {
          const now = hidden();
          if (box.checked) now.delete(name);
          else now.add(name);
          choose({ off: [...now].join("/") });
          redraw();
        });
        return element("label", { class: "chip" }, box, swatch(number), name);
      }),
  );
}

function swatch(number) {
  const paths = {
    circle: "M-4,0a4,4,0,1,0,8,0a4,4,0,1,0,-8,0",
    square: "M-4,-4h8v8h-8z",
    "triangle-up": "M-5,4h10l-5,-9z",
    diamond: "M0,-5l5,5l-5,5l-5,-5z",
    cross: "M-5,-2h3v-3h4v3h3v4h-3v3h-4v-3h-3z",
    "triangle-down": "M-5,-4h10l-5,9z",
    "triangle-right": "M-4,-5v10l9,-5z",
    "triangle-left": "M4,-5v10l-9,-5z",
  };
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "-6 -6 12 12");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", paths[shapeOf(number)]);
  path.setAttribute("fill", colourOf(number));
  svg.append(path);
  return svg;
}
