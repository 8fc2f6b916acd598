// The page: the list on one side, a turn on the other. The address names what is open: #3 or #3/wire.

import { conversation, heard } from "./conversation.js";
import { block, byId, make } from "./dom.js";
import { TurnList } from "./list.js";
import { moment, oneLine, plural, shorten } from "./text.js";
import { TABS, showTurn, timeMarks } from "./turn.js";
import { wireItems, wireView } from "./wire.js";

function start() {
  const index = block("index");
  const rows = index.turns.map((row, number) => ({ ...row, number }));
  rows.sort((a, b) => (a.ts < b.ts ? -1 : a.ts > b.ts ? 1 : a.number - b.number));
  const name = oneLine(shorten(index.name, 200));
  document.title = `${name} – event log`;
  byId("title").textContent = name;
  const days = rows.map((row) => moment(row.ts)[0]).filter(Boolean);
  const span = !days.length ? "" : days[0] === days[days.length - 1] ? days[0] : `${days[0]} to ${days[days.length - 1]}`;
  byId("about").textContent = [span, "times in UTC", index.program].filter(Boolean).map(oneLine).join(" · ");
  tell(index);

  let open = null; // {row, choose}
  const list = new TurnList(rows, (row) => go(row));
  const go = (row, tab) => {
    const hash = `#${row.number}${tab && tab !== "conversation" ? `/${tab}` : ""}`;
    if (location.hash === hash) route();
    else location.hash = hash;
  };
  const step = (by) => {
    const shown = list.found.includes(open.row) ? list.found : rows;
    const next = shown[shown.indexOf(open.row) + by];
    if (next) go(next);
  };
  const route = () => {
    const found = /^#(\d+)(?:\/(\w+))?$/.exec(location.hash);
    const row = found && rows.find((each) => each.number === Number(found[1]));
    document.body.classList.toggle("open", Boolean(row));
    if (!row) {
      open = null;
      const hint = rows.length ? "Choose a turn to see what was asked, what was answered, and every frame in between." : "No turn of this log matches.";
      byId("turn").replaceChildren(make("p", "empty start", hint));
      return;
    }
    const tab = TABS.some(([each]) => each === found[2]) ? found[2] : "conversation";
    list.mark(row);
    if (open !== null && open.row === row) {
      if (open.tab !== tab) open.choose(tab);
      open.tab = tab;
      return;
    }
    open = { row, tab, choose: showRecorded(row, tab, {
      back: () => (location.hash = ""),
      previous: () => step(-1),
      next: () => step(1),
      tab: (to) => {
        go(row, to);
        route();
      },
    }) };
  };
  addEventListener("hashchange", route);
  addEventListener("keydown", (event) => {
    const typing = event.target instanceof HTMLInputElement;
    if (event.key === "/" && !typing) {
      byId("filter").focus();
      event.preventDefault();
    } else if (event.key === "Escape" && !typing && document.body.classList.contains("open")) {
      location.hash = "";
      byId("list").focus();
    }
  });
  route();
}

// A turn whose blocks are in the page.
function showRecorded(row, tab, go) {
  const said = block(`c${row.number}`);
  const wire = block(`w${row.number}`);
  const items = wireItems(wire, row);
  const views = { conversation: () => conversation(said), wire: () => wireView(items), heard: () => heard(said) };
  return showTurn(byId("turn"), row, said, { tab, tabs: TABS, views, go, times: { items, marks: timeMarks(row, wire) } }).choose;
}

function tell(index) {
  const told = [...index.told];
  if (index.left_out) {
    told.unshift(`${plural(index.left_out, "earlier turn")} left out, to keep this page small enough for a browser. Export again with filters (--since, --model, --outcome, --tool, --req) or with another --limit to see them.`);
  }
  if (!told.length) return;
  byId("told").hidden = false;
  byId("told").replaceChildren(...told.map((sentence) => make("p", "", oneLine(sentence))));
}

start();
