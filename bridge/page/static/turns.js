// The live list: running turns first, then the newest. More is loaded on the way down.

import { get } from "./api.js";
import { byId, make } from "./dom.js";
import { TURN, turnRow } from "./row.js";
import { number, plural } from "./text.js";
import { VirtualList } from "./virtual.js";

const PAGE = 300;
const NEAR = 100; // rows before the end at which the next page is loaded
const MOST = 20000; // rows, beyond which the list begins again with the newest
const PAUSE = 1000; // ms at least between two reloads of a filtered list

export class Turns {
  constructor({ onOpen }) {
    this.rows = [];
    this.known = new Map();
    this.filters = new URLSearchParams();
    this.next = null;
    this.chosen = null;
    this.round = 0;
    this.pending = new Map();
    this.virtual = new VirtualList(byId("list"), {
      height: TURN,
      row: (index) => turnRow(this.rows[index]),
      onSelect: (index) => {
        this.chosen = this.rows[index].id;
        onOpen(this.rows[index]);
      },
      onDraw: () => this.more(),
    });
  }

  get filtered() {
    return [...this.filters].length > 0;
  }

  // Nothing that is on its way is wanted any more, either.
  forget() {
    this.round += 1;
    this.pending.clear();
    this.known.clear();
    clearTimeout(this.timer);
    Object.assign(this, { rows: [], next: null, chosen: null, loaded: false, timer: null });
    this.virtual.setCount(0);
    this.status("");
  }

  // From the beginning, with these filters.
  async load(filters = this.filters) {
    if (filters !== this.filters || !this.loaded) this.status("loading…");
    this.filters = filters;
    const began = performance.now();
    const page = await this.fetch(null);
    this.took = performance.now() - began;
    if (page === null) return;
    this.rows = [];
    this.known.clear();
    this.next = page.next;
    this.loaded = true;
    this.put(page.turns);
  }

  async more() {
    if (!this.next || this.loading || this.virtual.last < this.rows.length - NEAR) return;
    const cursor = this.next;
    const page = await this.fetch(cursor);
    if (page === null || this.next !== cursor) return;
    this.next = page.next;
    this.put(page.turns);
  }

  // A page of the list; null when it failed, or is not wanted any more.
  async fetch(cursor) {
    const round = (this.round += 1);
    this.loading = true;
    const query = new URLSearchParams(this.filters);
    query.set("limit", String(PAGE));
    if (cursor) query.set("before", cursor);
    try {
      const page = await get(`turns?${query}`);
      return round === this.round ? page : null;
    } catch (error) {
      if (round !== this.round) return null;
      this.next = null;
      this.rows = cursor ? this.rows : [];
      this.put([]);
      this.status(error.message, true);
      return null;
    } finally {
      if (round === this.round) this.loading = false;
    }
  }

  // A row that came by itself. All that come before the next frame are put in at once.
  take(row) {
    if (this.filtered) {
      const known = this.known.get(row.id);
      if (known && row.running) this.change(row);
      else this.reloadSoon();
      return;
    }
    this.change(row);
    if (this.rows.length > MOST) this.reloadSoon();
  }

  change(row) {
    if (!this.pending.size) requestAnimationFrame(() => {
      const rows = [...this.pending.values()];
      this.pending.clear();
      this.put(rows);
    });
    this.pending.set(row.id, row);
  }

  // Which turns match is for the bridge to say: the list is loaded again, more rarely the longer that takes.
  reloadSoon() {
    if (this.timer) return;
    this.timer = setTimeout(async () => {
      await this.load();
      this.timer = null;
    }, Math.max(PAUSE, (this.took || 0) * 4));
  }

  remove(id) {
    this.pending.delete(id);
    if (!this.known.delete(id)) return;
    this.rows = this.rows.filter((row) => row.id !== id);
    this.draw(0);
  }

  put(rows) {
    const top = this.rows[Math.floor(this.virtual.element.scrollTop / TURN)];
    const before = top ? this.rows.indexOf(top) : 0;
    for (const row of rows) {
      const old = this.known.get(row.id);
      if (old) Object.assign(old, row);
      else {
        this.known.set(row.id, row);
        this.rows.push(row);
      }
    }
    this.rows.sort(inOrder);
    this.draw(top ? this.rows.indexOf(top) - before : 0);
  }

  draw(above) {
    this.virtual.selected = this.chosen === null ? -1 : this.rows.findIndex((row) => row.id === this.chosen);
    this.virtual.setCount(this.rows.length, Math.max(0, above));
    this.describe();
  }

  describe() {
    const running = this.rows.filter((row) => row.running).length;
    const count = this.rows.length || !this.loaded ? `${plural(this.rows.length, "turn")}${this.next ? " loaded, more below" : ""}` : "";
    const none = this.filtered ? "No turn matches these filters." : "No turns yet. Send a request to the bridge, and it appears here.";
    this.status([running ? `${number(running)} running` : null, count || none].filter(Boolean).join(" · "));
  }

  status(text, isError) {
    byId("count").replaceChildren(make("span", isError ? "bad" : "", text));
  }

  mark(id) {
    this.chosen = id;
    const index = this.rows.findIndex((row) => row.id === id);
    if (index >= 0) this.virtual.select(index, true);
    else this.draw(0);
  }

  // The turn above or below one in the list.
  beside(id, by) {
    return this.rows[this.rows.findIndex((row) => row.id === id) + by];
  }
}

function inOrder(a, b) {
  if (a.running !== b.running) return a.running ? -1 : 1;
  return a.ts < b.ts ? 1 : a.ts > b.ts ? -1 : a.id < b.id ? 1 : -1;
}
