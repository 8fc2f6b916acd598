// Small plots over time, as SVG. Each has its figures as text as well: the latest, the largest, and a table.

import { make, makeSvg } from "./dom.js";

const HEIGHT = 96;
const LEFT = 46;
const BASE = 76;

// `series`: [{name, className, bars, values}], values by bucket (null where there are none). `times` are labels of the
// buckets, `show` writes a value.
export function plot(title, times, series, show) {
  const readout = make("p", "readout");
  const most = Math.max(0, ...series.flatMap(({ values }) => values.map((value) => value || 0)));
  const about = `${title}: at most ${show(most)}`;
  const idle = () => readout.replaceChildren(...series.flatMap(({ name, className, values }) => {
    const total = values.filter((value) => value !== null);
    return [make("span", `key ${className}`, ""), `${name} ${total.length ? `up to ${show(Math.max(...total))}` : "–"}  `];
  }));
  const holder = make("div", "plotarea");
  const draw = () => holder.replaceChildren(drawPlot(holder.clientWidth || 300, about, times, series, most, show, (at) => {
    if (at === null) idle();
    else readout.replaceChildren(make("b", "", times[at]), " ", series.map(({ name, values }) => `${name} ${values[at] === null ? "–" : show(values[at])}`).join(" · "));
  }));
  let width = -1;
  new ResizeObserver(() => {
    if (holder.clientWidth !== width) {
      width = holder.clientWidth;
      draw();
    }
  }).observe(holder);
  idle();
  return make("figure", "plot", make("figcaption", "", title), holder, readout);
}

function drawPlot(width, about, times, series, most, show, onPoint) {
  const room = Math.max(60, width - LEFT - 6);
  const step = room / Math.max(1, times.length);
  const y = (value) => BASE - (most ? (value / most) * (BASE - 8) : 0);
  const svg = makeSvg("svg", { width: LEFT + room + 6, height: HEIGHT, role: "img", "aria-label": about });
  for (const value of [0, most]) {
    if (value === 0 && most === 0) svg.append(makeSvg("line", { class: "grid", x1: LEFT, x2: LEFT + room, y1: BASE, y2: BASE }));
    else {
      svg.append(makeSvg("line", { class: "grid", x1: LEFT, x2: LEFT + room, y1: y(value), y2: y(value) }));
      svg.append(makeSvg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, value === 0 ? "0" : show(value)));
    }
  }
  for (const { className, values, bars } of series) {
    if (bars) {
      values.forEach((value, index) => {
        if (value) svg.append(makeSvg("rect", { class: className, x: LEFT + index * step + step * 0.1, y: y(value), width: Math.max(1, step * 0.8), height: Math.max(1, BASE - y(value)) }));
      });
    } else {
      // A line is broken where a bucket has no value.
      const points = values.map((value, index) => (value === null ? null : [LEFT + (index + 0.5) * step, y(value)]));
      const path = points.map((point, index) => (point ? `${points[index - 1] ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}` : "")).join("");
      svg.append(makeSvg("path", { class: `line ${className}`, d: path }));
      for (const [index, point] of points.entries()) {
        if (point && !points[index - 1] && !points[index + 1]) svg.append(makeSvg("circle", { class: className, cx: point[0], cy: point[1], r: 2 }));
      }
    }
  }
  const cursor = makeSvg("line", { class: "cursor", x1: 0, x2: 0, y1: 4, y2: BASE, visibility: "hidden" });
  svg.append(cursor);
  const labels = times.length > 1 ? [[0, "start"], [times.length - 1, "end"]] : times.length ? [[0, "start"]] : [];
  for (const [index, anchor] of labels) svg.append(makeSvg("text", { x: anchor === "end" ? LEFT + room : LEFT, y: HEIGHT - 4, "text-anchor": anchor }, times[index]));
  svg.addEventListener("pointermove", (event) => {
    const at = Math.floor((event.clientX - svg.getBoundingClientRect().left - LEFT) / step);
    if (at < 0 || at >= times.length) return;
    const x = LEFT + (at + 0.5) * step;
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.setAttribute("visibility", "visible");
    onPoint(at);
  });
  svg.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    onPoint(null);
  });
  return svg;
}
