// One turn of the live page: loaded, followed while it runs, and loaded again when it has ended.

import { follow, get, requestOfTurn, turnPath } from "./api.js";
import { contextView } from "./context.js";
import { askedSection, conversation, heard, section } from "./conversation.js";
import { button, byId, make } from "./dom.js";
import { Streamed } from "./stream.js";
import { LONGEST, number, oneLine, putText, shorten } from "./text.js";
import { TABS, metrics, showTurn, timeMarks } from "./turn.js";
import { wireItems, wireView } from "./wire.js";

const REDRAW = 500; // ms between two drawings of the frames of a turn that runs
const CUT = `?cut=${LONGEST}`; // of long texts only the beginning comes at first
const ALL_TABS = [...TABS, ["context", "Context"]];
// There is no whole text to mark before the end.
const RUNNING_TABS = ALL_TABS.filter(([name]) => name !== "heard");

export class Viewer {
  // `go` leads elsewhere; `actions(turn)` makes the bar of actions.
  constructor({ go, actions }) {
    this.place = byId("turn");
    this.go = go;
    this.actions = actions;
    this.turn = null;
    this.end = () => {};
  }

  close() {
    this.end();
    this.turn = null;
  }

  async open(id, tab) {
    this.wanted = tab;
    if (this.turn && this.turn.row.id === id) return this.choose(tab);
    this.end();
    const stop = new AbortController();
    this.end = () => stop.abort();
    this.place.setAttribute("aria-busy", "true");
    const slow = setTimeout(() => this.place.replaceChildren(make("p", "empty start", "Loading…")), 250);
    try {
      const said = await get(turnPath(id) + CUT, stop.signal);
      clearTimeout(slow);
      this.show(said, this.wanted); // another than at first, if it was chosen meanwhile
    } catch (error) {
      clearTimeout(slow);
      if (error.name === "AbortError") return undefined;
      this.turn = null;
      const again = button("Try again", () => this.open(id, this.wanted));
      const gone = error.status === 404 ? "No such turn: it was dropped to make room, or it belongs to another key." : error.message;
      this.place.replaceChildren(make("div", "start", make("p", "error", oneLine(gone)), button("Back to the list", this.go.back), " ", again));
    } finally {
      if (!stop.signal.aborted) this.place.removeAttribute("aria-busy");
    }
    return undefined;
  }

  // News of the turn that is open.
  update(row) {
    if (!this.turn || this.turn.row.id !== row.id || !row.running) return;
    Object.assign(this.turn.row, row);
    this.place.querySelector(".metrics").replaceWith(metrics(row, this.turn.said));
  }

  choose(tab) {
    this.wanted = tab;
    if (!this.turn) return;
    const known = this.tabs.some(([name]) => name === tab) ? tab : "conversation";
    if (known !== this.tab) this.shown.choose(known);
    this.tab = known;
  }

  show(said, tab, scrollTop = 0) {
    const { row } = said;
    const turn = { row, said, wire: null, items: [] };
    this.turn = turn;
    this.tabs = row.running ? RUNNING_TABS : ALL_TABS;
    this.tab = this.tabs.some(([name]) => name === tab) ? tab : "conversation";
    this.streamed = row.running ? new Streamed(this.place) : null;
    this.shown = showTurn(this.place, row, said, {
      tab: this.tab,
      tabs: this.tabs,
      views: {
        conversation: () => (row.running ? this.growing(said) : conversation(said)),
        wire: () => this.frames(turn),
        heard: () => heard(said),
        context: () => contextView(said, row),
      },
      go: this.go,
      times: { items: [], marks: [] },
      facts: [row.key && `key ${row.key}`, row.cost].filter(Boolean).map((fact) => oneLine(shorten(String(fact), 100))),
      below: [this.actions(turn), this.neighbours(said), this.cut(said), crash(said)].filter(Boolean),
    });
    this.place.scrollTop = scrollTop;
    if (row.running) this.follow(turn);
    else {
      this.loadWire(turn);
      if (!said.thread) this.findNeighbours(turn);
    }
  }

  // Of a turn that is only in a log they have to be searched.
  async findNeighbours(turn) {
    const found = await get(`${turnPath(turn.row.id)}/neighbours`).catch(() => null);
    if (found === null || turn !== this.turn) return;
    Object.assign(turn.said, { previous: found.previous, next: found.next });
    const links = this.neighbours(turn.said);
    if (links) this.place.querySelector(".actions").after(links);
  }

  growing(said) {
    const answer = section("Answering", "as it arrives");
    answer.classList.add("answering");
    answer.append(this.streamed.element);
    return make("div", "conversation", askedSection(said), answer);
  }

  frames(turn) {
    if (turn.wire === null) return make("p", "empty", "Loading frames and events…");
    const view = wireView(turn.items);
    turn.view = view;
    return view;
  }

  setWire(turn, wire) {
    turn.wire = wire;
    turn.items = wireItems(wire, turn.row);
    this.shown.line.update(turn.items, timeMarks(turn.row, wire));
    if (this.tab !== "wire") return;
    if (turn.view && turn.view.isConnected) turn.view.update(turn.items);
    else this.shown.choose("wire");
  }

  async loadWire(turn) {
    const stop = new AbortController();
    this.end = () => stop.abort();
    try {
      const wire = await get(`${turnPath(turn.row.id)}/wire${turn.said.whole ? "" : CUT}`, stop.signal);
      if (turn === this.turn) this.setWire(turn, wire);
    } catch (error) {
      if (error.name !== "AbortError" && this.tab === "wire") this.shown.panel.replaceChildren(make("p", "error", error.message));
    }
  }

  follow(turn) {
    let wire = null;
    let timer = null;
    const draw = () => {
      timer = null;
      if (turn === this.turn) this.setWire(turn, wire);
    };
    const stop = follow(`${turnPath(turn.row.id)}/events`, {
      // Each connection tells everything from the beginning.
      start: () => {
        wire = { request: null, end: null, frames: [], client: [] };
        this.streamed.clear();
        requestOfTurn(turn.row.id).then((found) => (wire.request = found), () => {});
      },
      text: (piece) => this.streamed.take(piece),
      wire: ({ frames = [], client = [] }) => {
        wire.frames.push(...frames);
        wire.client.push(...client);
        if (timer === null) timer = setTimeout(draw, REDRAW);
      },
      end: () => {
        stop();
        clearTimeout(timer);
        if (turn === this.turn) this.reload();
      },
      missed: () => stop.again(),
      gone: () => stop(),
    });
    this.end = () => {
      stop();
      clearTimeout(timer);
    };
  }

  // The turn has ended: all of it is on record now. The reader stays where they are.
  async reload(cut = CUT) {
    const { row } = this.turn;
    const said = await get(turnPath(row.id) + cut).catch(() => null);
    if (said === null || !this.turn || this.turn.row.id !== row.id) return;
    said.whole = !cut;
    const focused = this.place.contains(document.activeElement) && document.activeElement.dataset.tab;
    this.show(said, this.tab, this.place.scrollTop);
    if (focused) this.place.querySelector(`[data-tab="${this.tab}"]`).focus();
  }

  cut(said) {
    if (!said.cut) return null;
    return make("p", "notice", `Texts longer than ${number(LONGEST)} characters are cut. `, button("Load all of them", () => this.reload("")));
  }

  neighbours(said) {
    if (!said.previous && !said.next) return null;
    const link = (label, id) => (id ? button(label, () => this.go.turn(id)) : null);
    return make("p", "thread", make("span", "note", "Its conversation: "), link("earlier turn", said.previous), " ", link("later turn", said.next));
  }
}

// What the child wrote before it went: more than its last words in the error.
function crash({ stderr, exit }) {
  if (!stderr || !stderr.length || !exit) return null;
  const text = putText(make("pre", ""), stderr.join("\n"), 20000);
  text.tabIndex = 0;
  return make("details", "crash", make("summary", "", `stderr of the child: ${stderr.length} line${stderr.length === 1 ? "" : "s"}`), text);
}
