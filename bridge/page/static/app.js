// The live page: signs in, shows what the address names, and follows what happens at the bridge.

import { actionBar } from "./actions.js";
import { addressOf, filtersOf, open, readAddress, replace } from "./address.js";
import { follow, get, signOut, whenSignedOut } from "./api.js";
import { showCompare } from "./compare.js";
import { button, byId, make } from "./dom.js";
import { Filters } from "./filters.js";
import { Overview } from "./overview.js";
import { listen, showShortcuts } from "./shortcuts.js";
import { showSignIn, signInWithToken, takeToken } from "./signin.js";
import { oneLine, plural, shorten } from "./text.js";
import { Turns } from "./turns.js";
import { Viewer } from "./viewer.js";

const VIEWS = ["signin", "overview", "turn", "compare", "charts"];
const STATES = { live: "Live", reconnecting: "Reconnecting…", recording: "Recording" };

class App {
  constructor() {
    this.about = null;
    this.end = () => {};
    this.turns = new Turns({ onOpen: (row) => this.go.turn(row.id) });
    this.filters = new Filters((query) => {
      const { view, parts } = readAddress();
      replace(view, parts, query);
      this.turns.load(query);
    });
    this.overview = new Overview();
    this.go = {
      turn: (id, from) => {
        const query = this.filters.query;
        if (from) query.set("from", from);
        const { view, parts } = readAddress();
        open("turn", [id, ...(view === "turn" && parts[1] ? [parts[1]] : [])], query);
      },
      tab: (name) => {
        const { parts, query } = readAddress();
        replace("turn", name === "conversation" ? [parts[0]] : [parts[0], name], query);
        this.viewer.choose(name);
      },
      back: () => {
        open("turns", [], this.filters.query);
        byId("list").focus();
      },
      previous: () => this.step(-1),
      next: () => this.step(1),
      compare: (left, right) => open("compare", [left, right]),
    };
    this.viewer = new Viewer({
      go: this.go,
      actions: (turn) => actionBar(turn, {
        about: this.about, list: () => this.turns.rows, go: this.go, origin: readAddress().query.get("from"),
      }),
    });
    addEventListener("hashchange", () => this.route());
    byId("help").addEventListener("click", showShortcuts);
    byId("leave").addEventListener("click", async () => {
      this.end(); // what this session watches would end with it, and ask why
      this.viewer.close();
      await signOut().catch(() => {});
      this.leave("");
    });
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault();
      byId("main").focus();
    });
    this.listen();
    whenSignedOut(() => this.leave("Your session is over. Sign in again."));
  }

  async start() {
    const token = takeToken();
    const refused = token ? await signInWithToken(token) : null;
    await this.enter(refused || "");
  }

  async enter(message) {
    try {
      this.about = await get("about");
    } catch (error) {
      if (error.status === 401 || error.status === 403) return this.leave(error.status === 403 ? error.message : message);
      this.only("signin");
      return byId("signin").replaceChildren(make("div", "card signin", make("p", "bad", error.message), button("Try again", () => this.enter(message))));
    }
    const { program, key, source, operator, live, notes = [], models = [] } = this.about;
    document.body.classList.toggle("recording", !live);
    byId("title").textContent = oneLine(shorten(live ? "turnbridge" : source || "recording", 120));
    document.title = live ? "turnbridge" : `${oneLine(shorten(source || "", 80))} – turnbridge`;
    byId("about").textContent = [live ? (operator ? "operator" : key && `key ${key}`) : null, "times in UTC", program].filter(Boolean).map((fact) => oneLine(String(fact))).join(" · ");
    byId("leave").hidden = !live;
    for (const link of byId("views").children) link.hidden = !live && link.dataset.view === "overview";
    byId("views").hidden = false;
    byId("told").hidden = !notes.length;
    byId("told").replaceChildren(...notes.map((note) => make("p", "", oneLine(String(note)))));
    this.filters.offerModels(models);
    const { query } = readAddress();
    this.filters.query = filtersOf(query);
    this.follow();
    this.route();
    await this.turns.load(filtersOf(query));
    this.offerModels();
    return undefined;
  }

  // No session: everything of the last one leaves the page.
  leave(message) {
    this.end();
    this.viewer.close();
    this.overview.close();
    this.about = null;
    this.turns.forget();
    for (const name of ["turn", "compare", "charts", "about", "link"]) byId(name).replaceChildren();
    for (const name of ["views", "leave", "told"]) byId(name).hidden = true;
    this.only("signin");
    showSignIn(message, () => this.enter(""));
  }

  only(...names) {
    for (const name of VIEWS) byId(name).hidden = !names.includes(name);
  }

  route() {
    if (this.about === null) return;
    const { view, parts, query } = readAddress();
    for (const link of byId("views").children) {
      const current = link.dataset.view === (view === "overview" ? "overview" : "turns");
      if (current) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
      link.href = link.dataset.view === "turns" ? addressOf("turns", [], this.filters.query) : "#/overview";
    }
    document.body.classList.toggle("open", view === "turn");
    if (view !== "turn") this.viewer.close();
    if (view !== "overview") this.overview.close();
    if (this.comparing) this.comparing.abort();
    if (view === "overview") {
      this.only("charts");
      this.overview.open(query.get("hours") || "1");
    } else if (view === "compare" && parts.length > 1) {
      this.only("compare");
      this.comparing = new AbortController();
      byId("compare").focus();
      showCompare(parts[0], parts[1], this.comparing.signal).catch((error) => {
        if (error.name !== "AbortError") byId("compare").replaceChildren(make("p", "error", error.message));
      });
    } else {
      this.only("overview", "turn");
      this.routeTurns(view === "turn" ? parts : [], query);
    }
  }

  routeTurns([id, tab], query) {
    const filters = filtersOf(query);
    if (String(filters) !== String(this.filters.query)) {
      this.filters.query = filters;
      this.turns.load(filters);
    }
    this.turns.mark(id || null);
    if (id) {
      this.viewer.open(id, tab || "conversation");
      if (!byId("list").offsetWidth && document.activeElement === byId("list")) byId("turn").focus(); // the list is hidden now
    }
    else byId("turn").replaceChildren(make("p", "empty start", "Choose a turn to see what was asked, what was answered, and every frame in between."));
  }

  step(by) {
    const { parts } = readAddress();
    const row = this.turns.beside(parts[0], by);
    if (row) this.go.turn(row.id);
  }

  // The stream of what happens. After each break the list is loaded again: what came meanwhile is not repeated.
  follow() {
    this.end();
    if (!this.about.live) return this.link("recording");
    let broken = false;
    this.end = follow("events", {
      turn: (row) => {
        this.turns.take(row);
        this.viewer.update(row);
      },
      gone: ({ id }) => this.turns.remove(id),
      missed: ({ count }) => {
        this.link("live", `${plural(count || 0, "update")} missed, reloaded`);
        this.turns.reloadSoon();
      },
    }, (state) => {
      if (state === "live" && broken) this.turns.load();
      broken = state !== "live";
      this.link(state);
    });
    return undefined;
  }

  link(state, note) {
    byId("link").className = state;
    byId("link").textContent = note ? `${STATES[state]} · ${note}` : STATES[state];
  }

  offerModels() {
    const names = new Set([...(this.about.models || []), ...this.turns.rows.map((row) => row.model)]);
    this.filters.offerModels(names);
  }

  listen() {
    const press = (selector) => () => {
      const found = document.querySelector(selector);
      if (!found) return false;
      found.click();
      return true;
    };
    const tabs = Object.fromEntries([1, 2, 3, 4].map((each) => [each, press(`.tabs button:nth-child(${each})`)]));
    listen({
      ...tabs,
      "/": () => {
        if (!byId("filter").offsetWidth) {
          open("turns", [], this.filters.query);
          this.route(); // at once: a field that is not shown takes no focus
        }
        byId("filter").focus();
      },
      "?": showShortcuts,
      "[": () => this.step(-1),
      "]": () => this.step(1),
      s: press('[data-action="send"]'),
      c: press('[data-action="compare"]'),
      t: () => open("turns", [], this.filters.query),
      o: () => this.about && this.about.live && open("overview"),
      Escape: () => {
        if (readAddress().view === "turns") byId("list").focus();
        else this.go.back();
      },
    });
  }
}

new App().start();
