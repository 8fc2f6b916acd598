// The list of turns, and what it is narrowed by.

import { block, button, byId, make } from "./dom.js";
import { TURN, turnRow } from "./row.js";
import { number, oneLine, plural, shorten } from "./text.js";
import { VirtualList } from "./virtual.js";

const CHIPS = 10;

export class TurnList {
  constructor(rows, onOpen) {
    this.rows = rows;
    this.found = rows;
    this.chosen = { outcome: new Set(), model: new Set() };
    this.round = 0;
    this.filter = byId("filter");
    this.virtual = new VirtualList(byId("list"), {
      height: TURN,
      row: (index) => turnRow(this.found[index]),
      onSelect: (index) => onOpen(this.found[index]),
    });
    this.filter.addEventListener("input", () => this.apply());
    this.filter.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") {
        byId("list").focus();
        event.preventDefault();
      }
    });
    this.chips("outcome");
    this.chips("model");
    this.apply();
  }

  chips(name) {
    const counts = new Map();
    for (const row of this.rows) counts.set(row[name], (counts.get(row[name]) || 0) + 1);
    if (counts.size < 2) return;
    const group = make("div", "group");
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", `Only this ${name}`);
    for (const [value, count] of [...counts].sort((a, b) => b[1] - a[1]).slice(0, CHIPS)) {
      const chip = button("", () => {
        const chosen = this.chosen[name];
        if (!chosen.delete(value)) chosen.add(value);
        chip.setAttribute("aria-pressed", String(chosen.has(value)));
        this.apply();
      }, "chip");
      chip.append(oneLine(shorten(value, 40)), " ", make("span", "count", number(count)));
      chip.setAttribute("aria-pressed", "false");
      group.append(chip);
    }
    byId("chips").append(group);
  }

  // First what the rows tell, at once; then the texts of the rest, a few milliseconds at a time.
  apply() {
    const round = (this.round += 1);
    const wanted = this.filter.value.trim().toLowerCase();
    const { outcome, model } = this.chosen;
    const allowed = this.rows.filter((row) => (!outcome.size || outcome.has(row.outcome)) && (!model.size || model.has(row.model)));
    if (!wanted) return this.show(allowed, "");
    const matching = new Set();
    const open = [];
    for (const row of allowed) {
      if (rowText(row).includes(wanted)) matching.add(row);
      else open.push(row);
    }
    this.show(allowed.filter((row) => matching.has(row)), open.length ? "searching the texts…" : "");
    let next = 0;
    const search = () => {
      if (round !== this.round) return;
      const until = performance.now() + 12;
      while (next < open.length && performance.now() < until) {
        if (turnText(open[next]).includes(wanted)) matching.add(open[next]);
        next += 1;
      }
      const done = next >= open.length;
      if (done || performance.now() - this.shown > 150) {
        this.show(allowed.filter((row) => matching.has(row)), done ? "" : `searching the texts: ${number(next)} of ${number(open.length)}`);
      }
      if (!done) setTimeout(search, 0);
    };
    setTimeout(search, 60);
  }

  show(found, note) {
    const open = this.virtual.selected >= 0 ? this.found[this.virtual.selected] : null;
    this.found = found;
    this.shown = performance.now();
    this.virtual.selected = open === null ? -1 : found.indexOf(open);
    this.virtual.setCount(found.length);
    const all = this.rows.length;
    const text = found.length === all ? plural(all, "turn") : `${number(found.length)} of ${plural(all, "turn")}`;
    byId("count").textContent = note ? `${text} · ${note}` : text;
  }

  mark(row) {
    const index = this.found.indexOf(row);
    if (index >= 0) this.virtual.select(index, true);
  }
}

function rowText(row) {
  if (row.text === undefined) {
    const words = [row.id, row.model, row.path, row.outcome, row.reason, row.error, row.preview];
    row.text = [...words, ...row.calls, ...row.repairs]
      .filter(Boolean).join("\n").toLowerCase();
  }
  return row.text;
}

// All texts, and the names of tools. Kept unless there is too much of it.
const KEPT = 40000000;
let kept = 0;

function turnText(row) {
  if (row.whole !== undefined) return row.whole;
  const said = block(`c${row.number}`);
  const parts = [...said.asked, ...said.answers.flatMap((answer) => answer.parts)];
  const texts = [...parts.flatMap((part) => part.slice(2)), ...said.tools, ...said.heard.flat(2)];
  if (said.error) texts.push(said.error.message, said.error.code);
  const whole = texts.filter((text) => typeof text === "string").join("\n").toLowerCase();
  if (kept + whole.length < KEPT) {
    kept += whole.length;
    row.whole = whole;
  }
  return whole;
}
