// Two turns side by side: their figures, what was asked and what was answered, with the differences marked.

import { get, turnPath } from "./api.js";
import { addressOf } from "./address.js";
import { lineRows, wordStretches } from "./diff.js";
import { button, byId, make } from "./dom.js";
import { prettyJson } from "./pretty.js";
import { badge } from "./row.js";
import { moment, number, oneLine, plural, readable, seconds, shorten } from "./text.js";

const AROUND = 3; // equal lines that are shown beside a difference
const SHOWN = 3000; // rows of one section
const LONG = 4000; // characters of a line

export async function showCompare(left, right, signal) {
  const place = byId("compare");
  place.replaceChildren(make("p", "empty", "Loading two turns…"));
  const [a, b] = await Promise.all([left, right].map((id) => get(turnPath(id), signal)));
  const swap = make("a", "", "Swap sides");
  swap.href = addressOf("compare", [right, left]);
  place.replaceChildren(
    make("div", "line", make("h2", "", "Two turns compared"), swap),
    headTable(a, b),
    differences("Tools offered", a.tools, b.tools),
    differences("Asked", lines(a.asked), lines(b.asked)),
    differences("Answered", answered(a), answered(b)),
  );
}

function headTable(a, b) {
  const table = make("table", "figures");
  const link = ({ row }) => {
    const to = make("a", "", oneLine(shorten(row.id, 60)));
    to.href = addressOf("turn", [row.id]);
    return to;
  };
  const figures = [
    ["Turn", link],
    ["Time", ({ row }) => moment(row.ts).join(" "), () => ""], // of course they differ
    ["Outcome", ({ row }) => badge(row), ({ row }) => row.outcome],
    ["Error", ({ row }) => row.error || "–"],
    ["Model", ({ row }) => row.model],
    ["Path", (turn) => turn.path || "–"],
    ["Backend", (turn) => turn.backend || "–"],
    ["Effort", (turn) => turn.effort || "–"],
    ["First event", ({ row }) => seconds(row.first_event_s)],
    ["Total", ({ row }) => seconds(row.total_s)],
    ["Tokens in", ({ row }) => number(row.input_tokens)],
    ["Tokens out", ({ row }) => number(row.output_tokens)],
    ["Cost", ({ row }) => row.cost || "–"],
    ["Calls", ({ row }) => row.calls.join(", ") || "–"],
    ["Repairs", ({ row }) => row.repairs.join(", ") || "–"],
  ];
  const body = make("tbody");
  for (const [label, show, key = show] of figures) {
    const name = make("th", "", label);
    name.scope = "row";
    const texts = [a, b].map((turn) => (key === link ? "" : String(key(turn))));
    const line = make("tr", texts[0] === texts[1] ? "" : "differs", name);
    for (const turn of [a, b]) {
      const value = show(turn);
      line.append(make("td", "", typeof value === "string" ? oneLine(shorten(value, 300)) : value));
    }
    body.append(line);
  }
  const heads = ["", "Left", "Right"].map((text) => make(text ? "th" : "td", "", text));
  table.append(make("caption", "unseen", "Figures of both turns"), make("thead", "", make("tr", "", ...heads)), body);
  return table;
}

function lines(parts) {
  const worded = parts.filter(([, kind, text]) => kind !== "text" || text.trim());
  return worded.flatMap(([role, kind, text, name]) => {
    const head = kind === "text" ? `[${role}]` : `[${role} ${kind}${name ? ` ${name}` : ""}]`;
    return [head, ...((kind !== "text" && prettyJson(text || "")) || text || "").trimEnd().split("\n")];
  });
}

function answered(turn) {
  const found = turn.answers.flatMap((answer, index) => [...(index ? [`[choice ${index + 1}]`] : []), ...lines(answer.parts), `[end: ${answer.finish || turn.row.outcome}]`]);
  return turn.error ? [...found, `[error ${turn.error.code}] ${turn.error.message}`] : found;
}

function differences(title, a, b) {
  const rows = lineRows(a, b);
  const count = rows.filter(([left, right]) => left !== right).length;
  const note = !rows.length ? "nothing on either side" : count ? `${plural(count, "line")} differ${count === 1 ? "s" : ""}` : "the same";
  const section = make("section", "", make("h3", "", title, " ", make("span", "note", note)));
  if (!rows.length) return section;
  const grid = make("div", "diff");
  const near = (index) => rows.slice(Math.max(0, index - AROUND), index + AROUND + 1).some(([left, right]) => left !== right);
  let shown = 0;
  for (let index = 0; index < rows.length; ) {
    let end = index;
    while (end < rows.length && !near(end)) end += 1;
    if (end - index > 1) {
      const hidden = rows.slice(index, end);
      const more = button(`${plural(hidden.length, "equal line")}`, () => more.replaceWith(...hidden.slice(0, SHOWN).map(diffRow)), "equal");
      grid.append(more);
      index = end;
    } else if (shown > SHOWN) {
      grid.append(make("p", "note", `${number(rows.length - index)} more lines are not shown.`));
      break;
    } else {
      grid.append(diffRow(rows[index]));
      shown += 1;
      index += 1;
    }
  }
  section.append(grid);
  return section;
}

function diffRow([left, right]) {
  if (left === right) return make("div", "pair", side(left, ""), side(right, ""));
  const both = left !== null && right !== null;
  const [a, b] = both ? wordStretches(left, right) : [left === null ? null : [[left, false]], right === null ? null : [[right, false]]];
  return make("div", "pair", side(a, "del"), side(b, "ins"));
}

// A line on one side: text, or stretches of which some differ. A sign says the same as the colour.
function side(content, tag) {
  if (content === null) return make("div", "side none");
  const element = make("div", `side ${tag}`);
  if (tag) element.append(make("span", "sign", tag === "del" ? "−" : "+"));
  const stretches = typeof content === "string" ? [[content, false]] : content;
  const text = make("span", "linetext");
  let room = LONG;
  for (const [words, differs] of stretches) {
    if (room <= 0) break;
    const cut = readable(shorten(words, room));
    room -= words.length;
    text.append(differs ? make(tag, "", cut) : cut);
  }
  element.append(text);
  return element;
}
