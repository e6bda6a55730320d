// The controls above the charts, and the selectors of single charts.

/* Options of a list: pairs of a value and its text, or values that are their own texts. */
const optionsOf = (options) =>
  options.map((option) => {
    const [value, text = value] = [option].flat();
    return element("option", { value }, text);
  });

/* A labelled selector, whose value the address keeps under a key; it redraws a group of charts. */
function selector(label, key, options, group, value = chosen(key)) {
  const onchange = () => narrow({ [key]: select.value }, [group]);
  const select = element("select", { id: `choose-${key}`, onchange }, ...optionsOf(options));
  select.value = value;
  return element("span", element("label", { for: select.id }, label), " ", select);
}

function fill(select, options, value) {
  select.replaceChildren(...optionsOf(options));
  select.value = value;
  if (select.selectedIndex < 0) select.selectedIndex = 0;
}

/* Show the choices in the address. */
function syncControls() {
  const subject = subjectNumber();
  const own = BLOCKS.filter((block) => block.subject === subject);
  const batches = ascending(own.map(({ batch }) => batch));
  fill(byId("subject"), DATA.subjects, DATA.subjects[subject]);
  fill(byId("mesh"), [["", "all"], ...unique(own.map(({ mesh }) => mesh))], chosen("mesh"));
  fill(byId("batch"), [["", "all"], ...batches], chosen("batch"));
  const timed = CELLS.filter((cell) => cell.of.subject === subject && cell.status === "ok");
  const arms = ascending(timed.map(({ arm }) => arm));
  byId("implementations").replaceChildren(...arms.map(implementationBox));
  // The sticky controls must not cover a section that the address links to.
  const height = `${document.querySelector(".controls").offsetHeight}px`;
  document.documentElement.style.setProperty("--controls", height);
}

/* A box that shows or hides an implementation. */
function implementationBox(arm) {
  const name = IMPLEMENTATIONS[arm];
  const onchange = () => {
    const off = hidden();
    if (!off.delete(name)) off.add(name);
    narrow({ off: [...off].join("/") });
  };
  const box = element("input", { type: "checkbox", checked: !hidden().has(name), onchange });
  const mark = DATA.approximate.includes(arm) ? " (approximate)" : "";
  const letter = DATA.letters[DATA.looks.shapes[arm]];
  return element("label.chip", box, swatch(letter, colourOf(arm)), name + mark);
}

/* A mark of the charts; CSS generates it, to hide it from screen readers. */
function swatch(letter, colour) {
  const mark = element("span.mark", { "data-letter": letter, "aria-hidden": "true" });
  mark.style.color = colour;
  return mark;
}
