// Both wires, side by side, in the order of time: what went between bridge and backend, and what the client got.

import { make } from "./dom.js";
import { number, oneLine, plural, putText, shorten, since } from "./text.js";
import { tree } from "./tree.js";
import { VirtualList } from "./virtual.js";

const ROW = 26;

// Everything with a time, as {at, lane, label, hint, value, raw, facts}; lane 0 and 1 are the backend's, 2 the client's.
export function wireItems(wire, row) {
  const items = [];
  for (const [at, direction, kind, method, chunk, attempt, payload] of wire.frames) {
    items.push({
      at,
      lane: direction === "out" ? 0 : 1,
      label: method || upstreamLabel(payload) || kind,
      value: payload,
      facts: [kind, chunk === null ? null : `read ${chunk}`, attempt ? `attempt ${attempt}` : null],
    });
  }
  if (wire.request) {
    const path = typeof wire.request.path === "string" ? wire.request.path : "";
    const label = path.startsWith("/") ? `POST ${path}` : path || "request";
    items.push({ at: 0, lane: 2, label, value: "body" in wire.request ? wire.request.body : wire.request, facts: ["client_request"], asks: true });
  }
  for (const [at, kind, payload] of wire.client) items.push(...clientItems(at, kind, payload));
  if (wire.end !== null && wire.end !== undefined) items.push({ at: wire.end, lane: 2, label: `end: ${row.outcome}`, value: null, facts: ["turn_end"], ends: true });
  return items.map((item, index) => [item, index]).sort(([a, i], [b, j]) => a.at - b.at || i - j).map(([item]) => item);
}

function upstreamLabel(payload) {
  if (payload === null || typeof payload !== "object") return null;
  return typeof payload.type === "string" ? payload.type : typeof payload.object === "string" ? payload.object : null;
}

function clientItems(at, kind, payload) {
  if (kind === "client_start") {
    return [{ at, lane: 2, label: `HTTP ${payload && payload.status}`, value: payload, facts: [kind] }];
  }
  if (kind === "client_sse" && typeof payload === "string") {
    const ends = payload.startsWith("{") ? "\n" : "\n\n"; // packets may be lines
    return payload.split(ends).filter((event) => event.trim()).map((event) => sseItem(at, event));
  }
  const labels = { client_json: "JSON body", client_sse_done: "end of stream" };
  const label = labels[kind] || (payload && typeof payload.type === "string" ? payload.type : kind);
  return [{ at, lane: 2, label, value: payload, facts: [kind] }];
}

function sseItem(at, event) {
  const lines = event.split("\n");
  const said = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).replace(/^ /, "")).join("\n");
  const data = event.startsWith("{") ? event : said;
  const named = lines.find((line) => line.startsWith("event:"));
  let value = data;
  if (data.length < 5000000) {
    try {
      value = JSON.parse(data);
    } catch {
      // shown as it is
    }
  }
  const packet = packetLabel(value);
  let label = packet || (named ? named.slice(6).trim() : upstreamLabel(value) || (event.startsWith(":") ? "comment" : "data"));
  if (data === "[DONE]") label = "[DONE]";
  else if (!named && value && typeof value === "object" && value.error) label = "error";
  return { at, lane: 2, label, value: data ? value : event, raw: event, facts: ["client_sse"] };
}

// What a packet of CAP brings: its op, and of an event the type.
function packetLabel(value) {
  if (value === null || typeof value !== "object" || typeof value.op !== "string" || !("p" in value)) return null;
  const type = value.p && typeof value.p.type === "string" ? value.p.type : null;
  return type ? `${value.op}: ${type}` : value.op;
}

// The few words that tell one delta from the next.
function hint(item) {
  if (item.hint === undefined) item.hint = oneLine(shorten(hintOf(item.value), 120));
  return item.hint;
}

function hintOf(value) {
  if (value === null || typeof value !== "object") return "";
  const params = value.params || value;
  const choice = Array.isArray(value.choices) && value.choices[0] ? value.choices[0] : {};
  const data = (value.p && value.p.data) || {};
  const said = [
    value.p, data.thought, data.label, data.tool, data.message, value.p && value.p.message, params.delta, params.msg && params.msg.delta, choice.delta && choice.delta.content, choice.finish_reason,
    params.delta && params.delta.text, params.item && params.item.text, params.item && params.item.type,
    params.error && params.error.message, value.error && value.error.message, params.model, params.status,
  ].find((candidate) => typeof candidate === "string" && candidate);
  return said === undefined ? "" : said;
}

// Two to a row where one follows the other; what is lower came later. Where two have no room, one to a row.
const NARROW = matchMedia("(max-width: 560px)");

function wireRows(items) {
  if (NARROW.matches) return items.map((item) => (item.lane === 2 ? [null, item] : [item, null]));
  const rows = [];
  let row = null;
  for (const item of items) {
    const side = item.lane === 2 ? 1 : 0;
    if (row === null || row[side] !== null || (side === 0 && row[1] !== null)) rows.push((row = [null, null]));
    row[side] = item;
  }
  return rows;
}

export function wireView(items) {
  const view = make("div", "wire");
  const search = make("input", "");
  search.type = "search";
  search.placeholder = "Filter frames and events";
  search.setAttribute("aria-label", "Filter frames and events");
  const count = make("p", "note");
  const head = make("div", "wirehead", make("span", "", "Backend frames"), make("span", "", "Client events"));
  const list = make("div", "virtual frames");
  list.id = "frames";
  list.tabIndex = 0;
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Frames and events, by time");
  const detail = make("div", "detail", make("p", "empty", "Choose a frame or an event to see all of it."));
  view.append(make("div", "wiretools", search, count), make("div", "wirebody", make("div", "both", head, list), detail));

  let rows = [];
  let side = 0;
  const show = (index) => {
    const row = rows[index];
    const item = row[side] || row[1 - side];
    detail.replaceChildren(...itemDetail(item));
    detail.scrollTop = 0;
  };
  const virtual = new VirtualList(list, {
    height: ROW,
    row: (index) => {
      const chosen = index !== virtual.selected ? -1 : rows[index][side] ? side : 1 - side;
      return make("div", "pair", cell(rows[index][0], 0, chosen), cell(rows[index][1], 1, chosen));
    },
    onSelect: show,
  });
  const pick = (event) => {
    const found = event.target.closest("[data-side]");
    if (found) side = Number(found.dataset.side);
  };
  list.addEventListener("click", pick, true);
  list.addEventListener("keydown", (event) => {
    if ((event.key === "ArrowLeft" || event.key === "ArrowRight") && virtual.selected >= 0) {
      side = event.key === "ArrowRight" ? 1 : 0;
      virtual.select(virtual.selected);
      event.preventDefault();
    }
  });
  const filter = (keep) => {
    const wanted = search.value.toLowerCase();
    const found = wanted ? items.filter((item) => matches(item, wanted)) : items;
    rows = wireRows(found);
    if (keep !== true) virtual.selected = -1;
    virtual.setCount(rows.length);
    count.textContent = found.length === items.length ? plural(items.length, "record") : `${number(found.length)} of ${plural(items.length, "record")}`;
  };
  search.addEventListener("input", () => filter());
  NARROW.onchange = () => filter(); // of the view that is shown
  filter();
  // More of a turn that runs. What was there stays where it is.
  view.update = (more) => {
    items = more;
    filter(true);
  };
  view.goTo = (at) => {
    const index = rows.findIndex((row) => (row[0] || row[1]).at >= at);
    virtual.select(index < 0 ? rows.length - 1 : index);
  };
  return view;
}

function matches(item, wanted) {
  if (item.label.toLowerCase().includes(wanted) || hint(item).toLowerCase().includes(wanted)) return true;
  const text = item.raw === undefined ? JSON.stringify(item.value) : item.raw;
  return text !== undefined && text.toLowerCase().includes(wanted);
}

function cell(item, side, chosen) {
  const element = make("div", `cell${item === null ? " none" : ""}${side === chosen ? " chosen" : ""}`);
  element.dataset.side = String(side);
  if (item === null) return element;
  const arrow = side === 1 ? (item.asks ? "⇠" : item.ends ? "■" : "⇢") : item.lane === 0 ? "→" : "←";
  const bad = /error|failed|end: failed/.test(item.label) ? " bad" : "";
  element.append(
    make("span", "at", since(item.at)),
    make("span", `arrow lane${item.lane}`, arrow),
    make("span", `label${bad}`, oneLine(shorten(item.label, 120))),
    make("span", "hint", hint(item)),
  );
  return element;
}

function itemDetail(item) {
  const facts = [`${since(item.at)} s`, ...item.facts.filter(Boolean)].map(oneLine).join(" · ");
  const out = [make("h3", "", make("code", "", oneLine(shorten(item.label, 300)))), make("p", "note", facts)];
  out.push(item.value === null ? make("p", "empty", "No more is on record.") : tree(item.value));
  if (item.raw !== undefined) {
    const raw = make("details", "rawtext", make("summary", "", "As it was sent"));
    raw.addEventListener("toggle", () => {
      if (raw.childElementCount === 1) raw.append(putText(make("pre", ""), item.raw));
    });
    out.push(raw);
  }
  return out;
}
