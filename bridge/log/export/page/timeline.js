// When things happened, on three lanes. Ticks that fall on the same place are one, the darker the more they are.

import { make, makeSvg } from "./dom.js";
import { seconds } from "./text.js";

const LABELS = 96;
const LANES = [
  ["to backend", "sent"],
  ["from backend", "received"],
  ["to client", "told"],
];

export function timeline(items, marks, onPick) {
  const holder = make("div", "timeline");
  let drawn = 0;
  const draw = () => {
    drawn = holder.clientWidth;
    holder.replaceChildren(drawTimeline(items, marks, Math.max(drawn, 240), onPick));
  };
  new ResizeObserver(() => holder.clientWidth !== drawn && draw()).observe(holder);
  holder.update = (newItems, newMarks) => {
    [items, marks] = [newItems, newMarks];
    draw();
  };
  return holder;
}

function drawTimeline(items, marks, width, onPick) {
  const end = Math.max(0.000001, ...marks.map((mark) => mark.at), items.length ? items[items.length - 1].at : 0);
  const room = width - LABELS - 12;
  const x = (at) => LABELS + (Math.min(Math.max(at, 0), end) / end) * room;
  const svg = makeSvg("svg", { width, height: 112, role: "img", "aria-label": `Timeline of ${seconds(end)}` });
  for (const at of axis(end, room)) {
    svg.append(makeSvg("line", { class: "grid", x1: x(at), x2: x(at), y1: 22, y2: 94 }));
    svg.append(makeSvg("text", { class: "axis", x: x(at), y: 108, "text-anchor": at === 0 ? "start" : x(at) > width - 40 ? "end" : "middle" }, at === 0 ? "0" : seconds(at)));
  }
  LANES.forEach(([label, name], lane) => {
    const y = 26 + lane * 23;
    svg.append(makeSvg("text", { class: "lane", x: 0, y: y + 13 }, label));
    svg.append(makeSvg("rect", { class: "track", x: LABELS, y, width: room, height: 18, rx: 3 }));
    const places = new Map();
    for (const item of items) {
      if (item.lane !== lane) continue;
      const place = Math.round(x(item.at) / 2) * 2;
      places.set(place, (places.get(place) || 0) + 1);
    }
    for (const [place, count] of places) {
      const opacity = Math.min(1, 0.45 + Math.log10(count + 1) * 0.4).toFixed(2);
      svg.append(makeSvg("rect", { class: name, x: place - 1, y: y + 1, width: 2.5, height: 16, opacity }));
    }
  });
  const taken = [];
  for (const mark of marks) {
    const place = x(mark.at);
    svg.append(makeSvg("line", { class: "mark", x1: place, x2: place, y1: 18, y2: 94 }));
    const length = mark.label.length * 6.4;
    const right = place + length > width;
    const left = right ? place - length : place;
    if (taken.some(([from, to]) => left < to + 8 && left + length > from - 8)) continue; // it would cover another
    taken.push([left, left + length]);
    svg.append(makeSvg("text", { class: "label", x: place, y: 13, "text-anchor": right ? "end" : "start" }, mark.label));
  }
  svg.addEventListener("click", (event) => {
    const at = ((event.clientX - svg.getBoundingClientRect().left - LABELS) / room) * end;
    if (at >= 0) onPick(at);
  });
  return svg;
}

// Round times from 0 to the end, some 110 pixels apart.
function axis(end, room) {
  const raw = end / Math.max(1, Math.floor(room / 110));
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw);
  const ticks = [];
  for (let index = 0; index * step <= end && index < 50; index += 1) ticks.push(index * step);
  return ticks;
}
