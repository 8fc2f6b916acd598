// A case in a column: what was asked, what was injected, and every sample.

const AT_FIRST = 5; // samples that are shown unasked

function showCell(index, row, at, go) {
  const cell = row.cells[at];
  const column = index.columns[at];
  const known = row.known ? block(`k${row.number}`) : null;
  const steps = make("div", "steps", button("‹ All cases", go.back, "back"), button("‹ Previous", go.previous), button("Next ›", go.next));
  const title = make("h2", "", make("span", "", oneLine(shorten(row.id, 200))), make("span", `badge ${cell.word}`, cell.scored ? `${cell.passed}/${cell.scored} ${cell.word}` : cell.word));
  const facts = [row.category, column.model, column.variant, ...row.tags.map((tag) => `#${tag}`)];
  const n = index.repeats;
  const figures = cell.scored ? [`95 % interval ${range(cell.interval)}`, `pass@${n} ${percent(cell.pass_at)}`, `pass^${n} ${percent(cell.pass_hat)}`] : [];
  const parts = [
    make("header", "turnhead", make("div", "line", title, steps), make("p", "facts", [...facts, ...figures].map((fact) => oneLine(shorten(fact, 120))).join(" · "))),
    columnTabs(index, row, at, go),
  ];
  if (known !== null) parts.push(...about(known, at));
  else parts.push(make("p", "notice", "The suite was not available when this page was made, so its questions and expectations are unknown."));
  const samples = [];
  for (let nth = 0; nth < cell.kept; nth += 1) samples.push(block(`s${row.number}-${at}-${nth}`));
  samples.sort((a, b) => weight(a) - weight(b) || a.repeat - b.repeat);
  const view = (sample) => sampleView(sample, known, index);
  parts.push(...samples.slice(0, AT_FIRST).map(view));
  if (samples.length > AT_FIRST) {
    const more = button(`Show ${plural(samples.length - AT_FIRST, "more sample")}`, () => more.replaceWith(...samples.slice(AT_FIRST).map(view)), "more");
    parts.push(more);
  }
  const all = cell.scored + cell.errors;
  if (all > cell.kept) parts.push(make("p", "notice", `${plural(all - cell.kept, "sample")} of this cell ${all - cell.kept === 1 ? "is" : "are"} counted, but not in this page.`));
  if (!all) parts.push(make("p", "empty", "This case was not asked in this column."));
  const place = byId("turn");
  place.replaceChildren(...parts);
  place.scrollTop = 0;
}

// What went wrong comes first, what the machinery did last.
const weight = (sample) => (sample.status === "error" ? 2 : sample.passed ? 1 : 0);

function columnTabs(index, row, at, go) {
  const tabs = make("div", "tabs columns");
  tabs.setAttribute("role", "tablist");
  tabs.setAttribute("aria-label", "The same case in other columns");
  index.columns.forEach((column, place) => {
    const cell = row.cells[place];
    const tab = button("", () => go.column(place));
    tab.append(oneLine(shorten(columnName(index, column), 60)), " ", make("span", `share ${cell.word}`, cell.scored ? `${cell.passed}/${cell.scored}` : cell.word));
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-selected", String(place === at));
    tab.tabIndex = place === at ? 0 : -1;
    tabs.append(tab);
  });
  tabs.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    go.column((at + step + index.columns.length) % index.columns.length, true);
  });
  return tabs;
}

function about(known, at) {
  const few = known.asked.length === 1 && (known.asked[0][2] || "").length < 400 && known.tools.length < 12;
  const tools = known.tools.length ? `${plural(known.tools.length, "tool")} offered` : "no tools";
  const choice = known.choice === "auto" ? "" : `, tool_choice ${oneLine(shorten(known.choice, 80))}`;
  const asked = folded(`Asked, with ${tools}${choice}`, few, (place) => {
    const calls = new Map(known.asked.filter(([, kind]) => kind === "call").map(([, , , name, id]) => [id, name]));
    if (known.notes) place.append(make("p", "note", oneLine(known.notes)));
    if (known.tools.length) place.append(names(known.tools));
    place.append(...known.asked.map((entry) => part(entry, calls, FOLDED)));
  });
  if (known.injected[at] === null) return [asked, make("p", "note none", "No text is injected in this variant.")];
  const injected = folded("Injected text of this variant", false, (place) => {
    const text = block(`t${known.injected[at]}`);
    place.append(make("p", "note", size(text.length)), putText(make("pre", "raw"), text, CUT));
  });
  injected.classList.add("injected");
  return [asked, injected];
}

// Filled when it is opened.
function folded(title, open, fill) {
  const found = make("details", "folded", make("summary", "", title));
  const place = make("div", "inside conversation");
  let filled = false;
  const unfold = () => {
    if (filled || !found.open) return;
    filled = true;
    fill(place);
  };
  found.append(place);
  found.addEventListener("toggle", unfold);
  found.open = open;
  unfold();
  return found;
}
