// Curves predicted for other hardware, as the projection described them.

function drawPredicted({ target }) {
  const room = widthOf(target);
  const [concat, count] = room < 560 ? ["vconcat", 1] : ["hconcat", 2];
  const width = Math.min(300, room / count - 70);
  for (const { title, spec } of DATA.predicted) {
    const [times, shares] = spec.hconcat.map((panel) => panel.data.values);
    const rows = times.map((row, place) => ({ ...row, efficiency: shares[place].value }));
    const label = `Predicted: ${title}`;
    const chart = figure("predicted", { rows }, {
      title: label,
      spec: { [concat]: spec.hconcat.map((panel) => ({ ...panel, width })) },
      columns: [
        CELL,
        { key: "what", title: "What", filter: true },
        number("x", "Chips or devices"),
        number("value", "Step time", "s"),
        number("low", "Low end", "s"),
        number("high", "High end", "s"),
        number("efficiency", "Efficiency", "percent"),
      ],
    });
    target.append(element("h4", label), chart);
  }
}
