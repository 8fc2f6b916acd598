// All of it at a glance: the figures of each column, and how variants compare.

const percent = (rate) => {
  if (rate === null || rate === undefined) return "–";
  const whole = Math.round(rate * 100);
  return `${whole === 100 && rate < 1 ? 99 : whole === 0 && rate > 0 ? 1 : whole} %`;
};

const share = (part, whole) => (whole ? `${number(part)}/${number(whole)} ${percent(part / whole)}` : "–");

const columnName = (index, column) => (index.models.length > 1 ? `${column.model} · ${column.variant}` : column.variant);

const range = ([low, high]) => `${Math.round(low * 100)}–${Math.round(high * 100)} %`;

function overview(index) {
  const view = make("div", "glance");
  if (!index.columns.length) {
    view.append(make("p", "empty", "No results."));
    return view;
  }
  view.append(make("h2", "", "All cases"), columnTable(index));
  if (index.comparisons.length) view.append(make("h3", "", "Compared case by case, in percentage points"), comparisons(index.comparisons.map((each) => ({
    ...each,
    name: `${each.variant} against ${each.first}${index.models.length > 1 ? ` (${each.model})` : ""}`,
  }))));
  if (index.effects.length > 1) view.append(make("h3", "", "What makes the difference, in percentage points"), comparisons(index.effects.map((each) => ({
    ...each,
    name: `${each.dimension} ${each.level} against ${each.first}`,
    distinguishable: each.seen,
  }))));
  const counts = countTable(index);
  view.append(make("h3", "", "Counts"), counts);
  return view;
}

function tableOf(head, rows, className) {
  const table = make("table", className, make("thead", "", ...head), make("tbody", "", ...rows));
  const frame = make("div", "scrolled", table);
  frame.tabIndex = 0;
  frame.setAttribute("role", "region");
  frame.setAttribute("aria-label", "Figures");
  return frame;
}

function headCell(text, scope, span) {
  const cell = make("th", "", text);
  cell.scope = scope;
  if (span) cell.colSpan = span;
  return cell;
}

// Names of the columns: the variants, and above them the models where there are several.
function columnHeads(index) {
  const heads = [];
  if (index.models.length > 1) {
    const spans = index.models.map((model) => headCell(oneLine(shorten(model, 60)), "colgroup", index.columns.filter((column) => column.model === model).length));
    heads.push(make("tr", "models", make("td", ""), ...spans));
  }
  heads.push(make("tr", "variants", make("td", ""), ...index.columns.map((column) => headCell(oneLine(shorten(column.variant, 60)), "col"))));
  return heads;
}

function groupRow(title, width) {
  return make("tr", "grouprow", headCell(title, "rowgroup", width));
}

function rowOf(label, cells, title) {
  const name = make("th", "", label);
  name.scope = "row";
  if (title) name.title = title;
  return make("tr", "", name, ...cells.map((cell) => (cell instanceof Node ? make("td", "", cell) : make("td", "number", cell))));
}

function columnTable(index) {
  const n = index.repeats;
  const titles = ["", "passed", "95 % interval", `pass@${n}`, `pass^${n}`, "clean form"];
  const rows = [];
  let model = index.models.length > 1 ? null : index.columns[0].model;
  for (const column of index.columns) {
    if (column.model !== model) {
      model = column.model;
      rows.push(groupRow(oneLine(shorten(model, 80)), titles.length));
    }
    const rate = column.scored ? column.passed / column.scored : null;
    const within = range(column.interval);
    const bar = rate === null ? "–" : make("span", "ranged", rateBar(rate, column.interval, `${percent(rate)} passed, 95 % interval ${within}`), within);
    rows.push(rowOf(oneLine(shorten(column.variant, 60)), [
      share(column.passed, column.scored), bar, percent(column.pass_at), percent(column.pass_hat), share(column.clean, column.called),
    ]));
  }
  return tableOf([make("tr", "", ...titles.map((title) => headCell(title, "col")))], rows, "figures");
}

// One line each: what is compared, a bar, and words.
function comparisons(compared) {
  const reach = compared.flatMap((each) => [each.difference, ...(each.interval || [])].map((value) => Math.abs(value || 0)));
  const widest = Math.max(0.05, ...reach);
  const list = make("div", "compared");
  for (const each of compared) {
    list.append(make("span", "name", oneLine(shorten(each.name, 160))), differenceBar(each, widest, `${each.name}: ${each.words}`),
      make("span", each.distinguishable ? "words clear" : "words", oneLine(each.words)));
  }
  const end = Math.round(widest * 100);
  const scale = [`−${end}`, "0", `+${end}`].map((mark) => make("span", "", mark));
  list.append(make("span", "corner"), make("span", "scale", ...scale));
  return list;
}

const COUNTED = [["Forms", "forms", "forms"], ["Repairs", "repairs", "repairs"], ["Failed checks", "failed_checks", "checks"], ["Errors", "error_codes", null]];

function countTable(index) {
  const spent = [
    ["errors, not counted", (column) => (column.errors ? share(column.errors, column.errors + column.scored) : "0")],
    ["input tokens", (column) => number(column.input_tokens)],
    ["output tokens", (column) => number(column.output_tokens)],
    ["mean time of an answer", (column) => seconds(column.mean_seconds)],
  ];
  const rows = spent.map(([label, told]) => rowOf(label, index.columns.map(told)));
  for (const [title, name, words] of COUNTED) {
    const names = new Map();
    for (const column of index.columns) {
      for (const [each, count] of Object.entries(column[name])) if (count) names.set(each, (names.get(each) || 0) + count);
    }
    if (names.size) rows.push(groupRow(title, index.columns.length + 1));
    for (const [each] of [...names].sort((a, b) => b[1] - a[1])) {
      const label = make("span", "", make("code", "", oneLine(shorten(each, 60))));
      if (words !== null && Object.hasOwn(index.words[words], each)) label.append(make("span", "note", ` ${index.words[words][each]}`));
      rows.push(rowOf(label, index.columns.map((column) => (Object.hasOwn(column[name], each) && column[name][each] ? number(column[name][each]) : "·"))));
    }
  }
  return tableOf(columnHeads(index), rows, "counts");
}
