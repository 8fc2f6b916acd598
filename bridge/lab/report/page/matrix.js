// Cases by columns, and what they are narrowed by.

class Matrix {
  constructor(index, onOpen) {
    this.index = index;
    this.onOpen = onOpen;
    this.filter = byId("filter");
    this.category = byId("category");
    this.differences = byId("differences");
    this.focused = null; // the one cell that Tab leads to
    this.draw();
    this.choices();
    for (const [element, event] of [[this.filter, "input"], [this.category, "change"], [this.differences, "change"]]) element.addEventListener(event, () => this.apply());
    this.filter.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowDown") return;
      event.preventDefault();
      this.move(0, 0);
    });
    byId("matrix").addEventListener("keydown", (event) => this.key(event));
    byId("matrix").addEventListener("click", (event) => {
      const found = event.target.closest("button[data-row]");
      if (found) this.onOpen(index.cases[Number(found.dataset.row)], Number(found.dataset.column));
    });
    this.apply();
  }

  choices() {
    const every = make("option", "", `all ${number(this.index.categories.length)}`);
    every.value = "";
    this.category.append(every);
    for (const name of this.index.categories) {
      const option = make("option", "", oneLine(shorten(name, 60)));
      option.value = name;
      this.category.append(option);
    }
    this.category.parentElement.hidden = this.index.categories.length < 2;
    this.differences.parentElement.hidden = this.index.columns.length < 2;
    const marks = new Set(this.index.cases.flatMap((row) => row.cells.flatMap((cell) => Object.keys(cell.marks))));
    byId("legend").textContent = Object.entries(this.index.words.marks).filter(([mark]) => marks.has(mark)).map(([mark, words]) => `${mark} ${words}`).join(" · ");
  }

  draw() {
    const rows = this.index.cases;
    const table = make("table", "cells");
    table.setAttribute("role", "grid");
    table.setAttribute("aria-label", "Cases by model and variant");
    const head = make("thead", "", ...columnHeads(this.index));
    const body = make("tbody", "");
    let category = null;
    for (const row of rows) {
      if (row.category !== category) {
        category = row.category;
        body.append(this.categoryRow(category));
      }
      row.line = this.caseRow(row);
      body.append(row.line);
    }
    table.append(head, body);
    byId("matrix").replaceChildren(table);
  }

  categoryRow(category) {
    const name = make("th", "", oneLine(shorten(category, 80)));
    name.scope = "rowgroup";
    const line = make("tr", "category", name);
    const inside = this.index.cases.filter((row) => row.category === category);
    this.index.columns.forEach((_, at) => {
      const passed = inside.reduce((sum, row) => sum + row.cells[at].passed, 0);
      const scored = inside.reduce((sum, row) => sum + row.cells[at].scored, 0);
      line.append(make("td", "", scored ? `${number(passed)}/${number(scored)}` : ""));
    });
    inside.forEach((row) => (row.group = line));
    return line;
  }

  caseRow(row) {
    const name = make("th", "", oneLine(shorten(row.id, 120)));
    name.scope = "row";
    name.title = oneLine(row.id);
    const line = make("tr", "case", name);
    row.cells.forEach((cell, at) => {
      const column = this.index.columns[at];
      const marks = Object.entries(cell.marks).map(([mark, count]) => `${mark}${count}`).join(" ");
      const element = button("", () => {}, `cellbutton ${cell.word === "-" ? "none" : cell.word}`);
      element.append(cell.scored ? `${cell.passed}/${cell.scored}` : cell.word === "-" ? "–" : cell.word, marks ? make("span", "marks", marks) : "");
      element.dataset.row = String(row.number);
      element.dataset.column = String(at);
      element.tabIndex = -1;
      const told = Object.entries(cell.marks).map(([mark, count]) => `${count} ${this.index.words.marks[mark]}`).join(", ");
      element.setAttribute("aria-label", oneLine(`${row.id}, ${column.model}, ${column.variant}: ${cell.passed} of ${cell.scored}, ${cell.word}${told ? `; ${told}` : ""}`));
      element.title = oneLine(`${column.variant}: ${cell.word}${told ? `; ${told}` : ""}`);
      line.append(make("td", "", element));
    });
    return line;
  }

  apply() {
    const wanted = this.filter.value.trim().toLowerCase();
    const rows = this.index.cases;
    const groups = new Set();
    this.shown = rows.filter((row) => {
      const fits = (!this.category.value || row.category === this.category.value) && (!this.differences.checked || differs(row)) && (!wanted || rowText(row, this.index).includes(wanted));
      row.line.hidden = !fits;
      if (fits) groups.add(row.group);
      return fits;
    });
    for (const row of rows) row.group.hidden = !groups.has(row.group);
    const all = plural(rows.length, "case");
    byId("count").textContent = this.shown.length === rows.length ? all : `${number(this.shown.length)} of ${all}`;
    const first = this.shown[0];
    if (first && (this.focused === null || this.focused.closest("tr").hidden)) this.point(first, 0);
  }

  point(row, at) {
    if (this.focused !== null) this.focused.tabIndex = -1;
    this.focused = row.line.querySelectorAll("button")[at] || null;
    if (this.focused !== null) this.focused.tabIndex = 0;
  }

  mark(row, at) {
    const chosen = byId("matrix").querySelector("[aria-current]");
    if (chosen !== null) chosen.removeAttribute("aria-current");
    if (row === null) return;
    this.point(row, at);
    this.focused.setAttribute("aria-current", "true");
    this.focused.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  move(down, right) {
    if (this.focused === null) return;
    const row = this.index.cases[Number(this.focused.dataset.row)];
    const at = Math.min(this.index.columns.length - 1, Math.max(0, Number(this.focused.dataset.column) + right));
    const place = Math.min(this.shown.length - 1, Math.max(0, this.shown.indexOf(row) + down));
    if (!this.shown.length) return;
    this.point(this.shown[place], at);
    this.focused.focus();
  }

  key(event) {
    const many = this.index.cases.length;
    const steps = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1], PageDown: [10, 0], PageUp: [-10, 0], Home: [-many, 0], End: [many, 0] };
    if (!Object.hasOwn(steps, event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.move(...steps[event.key]);
  }
}

// Whether not all columns come to the same, in what passed and in form; where nothing was scored there is nothing to compare.
function differs(row) {
  const shares = (cell) => Object.entries(cell.forms).sort().map(([form, count]) => `${form} ${count / cell.scored}`);
  const outcomes = row.cells.filter((cell) => cell.scored).map((cell) => [cell.passed / cell.scored, ...shares(cell)].join());
  return new Set(outcomes).size > 1;
}

function rowText(row, index) {
  if (row.text === undefined) {
    const words = row.cells.flatMap((cell) => [cell.word, ...["forms", "repairs", "failed_checks", "error_codes"].flatMap((name) => Object.keys(cell[name]))]);
    row.text = [row.id, row.category, ...row.tags, ...new Set(words)].join("\n").toLowerCase();
  }
  return row.text;
}
