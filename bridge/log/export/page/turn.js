// One turn: its facts, its timeline, and several ways to look at it.

import { button, make } from "./dom.js";
import { badge } from "./row.js";
import { moment, number, oneLine, plural, putText, seconds, shorten } from "./text.js";
import { timeline } from "./timeline.js";

export const TABS = [
  ["conversation", "Conversation"],
  ["wire", "Frames and events"],
  ["heard", "Model's text"],
];

// Fill `place`. `views` makes what each of `tabs` shows, `go` leads elsewhere, `times` is for the timeline. `facts` and
// `below` are what a page adds to the head. Returns what the caller may do later: choose a tab, update the timeline.
export function showTurn(place, row, said, { tab, tabs, views, go, times, facts = [], steps = [], below = [] }) {
  const title = make("h2", "", oneLine(shorten(row.model, 120)), badge(row));
  const buttons = make("div", "steps",
    button("Back to the list", go.back, "back"), ...steps, button("Previous", go.previous), button("Next", go.next));
  const head = make("div", "turnhead", make("div", "line", title, buttons),
    make("p", "facts", [...about(row, said), ...facts].join(" · "), make("br"), make("code", "", oneLine(shorten(row.id, 200)))));

  const parts = [head, ...below, metrics(row, said)];
  if (said.error) parts.push(errorBox(said.error, said.exit));
  if (Array.isArray(said.dropped) && said.dropped.length) parts.push(make("p", "notice", `Left out of the request: ${oneLine(said.dropped.map(leftOut).join(", "))}`));

  const panel = make("div", "panel");
  panel.id = "panel";
  panel.setAttribute("role", "tabpanel");
  const bar = tabBar(tabs, row, go);
  const choose = (name) => {
    for (const each of bar.children) {
      const on = each.dataset.tab === name;
      each.setAttribute("aria-selected", String(on));
      each.tabIndex = on ? 0 : -1;
      if (on) panel.setAttribute("aria-labelledby", each.id);
    }
    panel.replaceChildren(views[name]());
    panel.className = `panel ${name}`;
  };
  const line = timeline(times.items, times.marks, (at) => {
    go.tab("wire");
    const view = panel.firstElementChild;
    if (view && view.goTo) view.goTo(at);
  });
  place.replaceChildren(...parts, line, bar, panel);
  place.scrollTop = 0;
  choose(tab);
  return { choose, line, panel };
}

function about(row, said) {
  const [day, time] = moment(row.ts);
  const run = said.run || {};
  return [
    day ? `${day} ${time} UTC` : null, said.path, said.backend && `backend ${said.backend}`,
    said.requested && said.requested !== row.model && `asked for ${said.requested}`, said.effort && `effort ${said.effort}`,
    said.status && `HTTP ${said.status}`, said.streamed ? "streamed" : null,
    run.redacted ? "redacted copy" : null,
  ].filter(Boolean).map((fact) => oneLine(shorten(String(fact), 200)));
}

function tabBar(tabs, row, go) {
  const bar = make("div", "tabs");
  bar.setAttribute("role", "tablist");
  bar.setAttribute("aria-label", "Views of this turn");
  for (const [name, label] of tabs) {
    const each = button(label, () => go.tab(name));
    if (name === "heard" && row.repairs.length) each.append(make("span", "note", ` (${plural(row.repairs.length, "repair")})`));
    each.dataset.tab = name;
    each.id = `tab-${name}`;
    each.setAttribute("role", "tab");
    each.setAttribute("aria-controls", "panel");
    bar.append(each);
  }
  bar.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = [...bar.children].indexOf(document.activeElement);
    const next = bar.children[(at + step + tabs.length) % tabs.length];
    next.focus();
    next.click();
  });
  return bar;
}

// An option that was dropped: its name, or its name and why.
const leftOut = (option) => (Array.isArray(option) ? option.filter(Boolean).join(": ") : String(option));

export function metrics(row, said) {
  const usage = said.usage || {};
  const list = make("dl", "metrics");
  const add = (label, value, more) => list.append(make("div", "", make("dt", "", label), make("dd", "", value, more ? hinted(make("span", "more", more), more) : null)));
  add("first event", seconds(row.first_event_s));
  add("total", seconds(row.total_s));
  add("tokens in", number(row.input_tokens), usage.cached_tokens ? `${number(usage.cached_tokens)} cached` : "");
  add("tokens out", number(row.output_tokens), usage.reasoning_tokens ? `${number(usage.reasoning_tokens)} reasoning` : "");
  const invalid = row.invalid_arguments.length ? `${number(row.invalid_arguments.length)} not JSON: ` : "";
  add("calls", number(row.calls.length), oneLine(shorten(invalid + [...new Set(row.calls)].join(", "), 60)));
  add("repairs", number(row.repairs.length), oneLine(shorten([...new Set(row.repairs)].join(", "), 60)));
  return list;
}

function scrolling(element) {
  element.tabIndex = 0; // also with the keyboard
  return element;
}

function hinted(element, text) {
  element.title = text;
  return element;
}

function errorBox(error, exit) {
  const text = typeof error.message === "string" ? error.message : JSON.stringify(error);
  const facts = [error.http_status && `HTTP ${error.http_status}`, error.type, error.param && `parameter ${error.param}`];
  return make("div", "error", make("p", "", make("code", "", oneLine(shorten(String(error.code || "error"), 100))), " ",
    make("span", "note", oneLine(facts.filter(Boolean).join(" · ")))), putText(make("p", "message"), text, 2000), exit && exitBox(exit));
}

// How the child ended that took the turn along.
function exitBox([cause, words]) {
  const told = `The child ${oneLine(cause)}${words ? ". Its last words on stderr:" : ", silently."}`;
  return make("div", "exit", make("p", "", told), words ? scrolling(putText(make("pre", ""), words, 2000)) : null);
}

export function timeMarks(row, wire) {
  // The most telling first: a label that has no room is left out.
  const marks = [];
  if (wire.end !== null && wire.end !== undefined) marks.push({ at: wire.end, label: `end ${seconds(wire.end)}` });
  if (row.first_event_s !== null) marks.push({ at: row.first_event_s, label: `first event ${seconds(row.first_event_s)}` });
  return [...marks, { at: 0, label: "request" }];
}
