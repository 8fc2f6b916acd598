// Small drawings: where a rate lies between 0 and 1, and where a difference lies around 0, each with its interval.

const BAR = { width: 150, height: 16 };

function drawing(label) {
  const svg = makeSvg("svg", { width: BAR.width, height: BAR.height, viewBox: `0 0 ${BAR.width} ${BAR.height}`, role: "img", class: "bar" });
  svg.setAttribute("aria-label", label);
  return svg;
}

function interval(svg, from, at, to, className) {
  const middle = BAR.height / 2;
  svg.append(
    makeSvg("line", { x1: from, x2: to, y1: middle, y2: middle, class: `reach ${className}` }),
    makeSvg("line", { x1: from, x2: from, y1: middle - 4, y2: middle + 4, class: `end ${className}` }),
    makeSvg("line", { x1: to, x2: to, y1: middle - 4, y2: middle + 4, class: `end ${className}` }),
    makeSvg("circle", { cx: at, cy: middle, r: 3.5, class: `at ${className}` }),
  );
}

function rateBar(rate, [low, high], label) {
  const svg = drawing(label);
  const place = (value) => 4 + value * (BAR.width - 8);
  svg.append(makeSvg("line", { x1: 4, x2: BAR.width - 4, y1: BAR.height - 1, y2: BAR.height - 1, class: "axis" }));
  for (const mark of [0, 0.5, 1]) {
    svg.append(makeSvg("line", { x1: place(mark), x2: place(mark), y1: BAR.height - 4, y2: BAR.height, class: "axis" }));
  }
  interval(svg, place(low), place(rate), place(high), "plain");
  return svg;
}

// `widest` is the largest distance from zero of all that stand below each other.
function differenceBar(found, widest, label) {
  const svg = drawing(label);
  const place = (value) => BAR.width / 2 + (value / widest) * (BAR.width / 2 - 6);
  svg.append(makeSvg("line", { x1: place(0), x2: place(0), y1: 0, y2: BAR.height, class: "zero" }));
  const className = !found.distinguishable ? "unclear" : found.difference > 0 ? "better" : "worse";
  if (found.interval === null) svg.append(makeSvg("circle", { cx: place(found.difference), cy: BAR.height / 2, r: 3.5, class: `at ${className}` }));
  else interval(svg, place(found.interval[0]), place(found.difference), place(found.interval[1]), className);
  return svg;
}
