// The controls above the charts, and the selectors of single charts.

const optionsOf = (options) => options.map(([value, text]) => element("option", { value }, text));

/* A labelled choice that is kept in the address under a key, and redraws a group of charts. */
function selector(label, key, options, value, group) {
  const select = element("select", { id: `choose-${key}` }, ...optionsOf(options));
  select.value = value;
  select.addEventListener("change", () => {
    choose({ [key]: select.value });
    redraw([group]);
  });
  return element("span", {}, element("label", { for: select.id }, label), " ", select);
}

function fill(select, options, value) {
  select.replaceChildren(...optionsOf(options));
  select.value = options.some(([option]) => option === value) ? value : (options[0]?.[0] ?? "");
}

/* Show the choices that the address holds. */
function syncControls() {
  const subject = subjectNumber();
  const own = BLOCKS.filter((block) => block.subject === subject);
  const distinct = (values) => [...new Set(values)].map((value) => [String(value), String(value)]);
  const batches = own.map(({ batch }) => batch).sort((a, b) => a - b);
  fill(byId("subject"), distinct(DATA.subjects), DATA.subjects[subject]);
  fill(byId("mesh"), [["", "all"], ...distinct(own.map(({ mesh }) => mesh))], chosen("mesh"));
  fill(byId("batch"), [["", "all"], ...distinct(batches)], chosen("batch"));
  const timed = CELLS.filter((cell) => cell.of.subject === subject && cell.status === "ok");
  const arms = [...new Set(timed.map(({ arm }) => arm))].sort((a, b) => a - b);
  byId("implementations").replaceChildren(...arms.map(implementationBox));
}

/* A box that shows or hides an implementation. */
function implementationBox(arm) {
  const name = IMPLEMENTATIONS[arm];
  const box = element("input", { type: "checkbox", checked: !hidden().has(name) });
  box.addEventListener("change", () => {
    const off = hidden();
    if (box.checked) off.delete(name);
    else off.add(name);
    choose({ off: [...off].join("/") });
    redraw();
  });
  return element("label", { class: "chip" }, box, swatch(arm), name);
}

/* An implementation's mark in the charts. */
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
