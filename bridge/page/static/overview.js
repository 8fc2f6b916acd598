// How the bridge is doing: plots over time, tables by model, key and backend, the account, the children, health, models.

import { get } from "./api.js";
import { open } from "./address.js";
import { button, byId, make } from "./dom.js";
import { plot } from "./plots.js";
import { compact, moment, number, oneLine, seconds, shorten } from "./text.js";

const SPANS = [["1", "hour"], ["24", "day"], ["168", "week"]];
const AGAIN = 10000; // ms between two readings

export class Overview {
  constructor() {
    this.place = byId("charts");
    this.end = () => {};
  }

  close() {
    this.end();
  }

  async open(hours) {
    this.end();
    const stop = new AbortController();
    let timer = null;
    this.end = () => {
      stop.abort();
      clearTimeout(timer);
    };
    const read = async () => {
      try {
        this.show(await get(`overview?hours=${encodeURIComponent(hours)}`, stop.signal), hours);
      } catch (error) {
        if (error.name === "AbortError") return;
        this.place.replaceChildren(make("p", "error", error.message));
      }
      if (!stop.signal.aborted) timer = setTimeout(read, AGAIN);
    };
    if (!this.place.childElementCount) this.place.append(make("p", "empty", "Loading…"));
    await read();
  }

  show(data, hours) {
    const spans = make("div", "choices");
    spans.setAttribute("role", "group");
    spans.setAttribute("aria-label", "Time span");
    for (const [value, label] of SPANS) {
      const each = button(`Last ${label}`, () => open("overview", [], new URLSearchParams({ hours: value })), "chip");
      each.dataset.hours = value;
      each.setAttribute("aria-pressed", String(value === hours));
      spans.append(each);
    }
    // What has the focus is drawn again, too; details stay as they were.
    const focused = this.place.contains(document.activeElement) ? document.activeElement.dataset.hours : null;
    const scrollTop = this.place.scrollTop;
    this.place.replaceChildren(
      make("div", "line", make("h2", "", "Overview"), spans, make("p", "note", data.now ? `as of ${moment(data.now)[1]} UTC` : "")),
      plots(data, Number(hours) || 1),
      make("div", "tiles",
        limitsTile(data.limits || []),
        childrenTile(data.children || []),
        ...Object.entries(data.by || {}).map(([what, rows]) => byTile(what, rows)),
        healthTile(data.health)),
      modelsTile(data.models || []),
    );
    this.place.scrollTop = scrollTop;
    const again = focused && this.place.querySelector(`[data-hours="${CSS.escape(focused)}"]`);
    if (again) again.focus();
  }
}

// Every bucket of the time, also those without a request, which are not in `series`.
function buckets({ series, step, now }, hours) {
  const last = Math.floor(Date.parse(now) / 1000 / step);
  const known = new Map(series.map((bucket) => [Math.floor(Date.parse(bucket.at) / 1000 / step), bucket]));
  const all = [];
  for (let at = last - Math.min(1000, Math.ceil((hours * 3600) / step)) + 1; at <= last; at += 1) {
    all.push(known.get(at) || { at: new Date(at * step * 1000).toISOString(), requests: 0, failed: 0, p50: null, p99: null, input: 0, output: 0 });
  }
  return all;
}

function plots(data, hours) {
  if (!data.series || !data.series.length) return make("p", "empty", "No requests in this time.");
  const { step } = data;
  const series = buckets(data, hours);
  const times = series.map(({ at }) => {
    const [day, time] = moment(at);
    return step >= 86400 ? day.slice(5) : step >= 3600 ? `${day.slice(5)} ${time.slice(0, 5)}` : time.slice(0, 5);
  });
  const values = (name) => series.map((bucket) => (bucket[name] === undefined ? null : bucket[name]));
  return make("div", "plots",
    plot("Requests", times, [{ name: "requests", className: "received", bars: true, values: values("requests") }, { name: "failed", className: "failed", bars: true, values: values("failed") }], compact),
    plot("Latency", times, [{ name: "p50", className: "received", values: values("p50") }, { name: "p99", className: "late", values: values("p99") }], seconds),
    plot("Tokens in", times, [{ name: "input", className: "sent", bars: true, values: values("input") }], compact),
    plot("Tokens out", times, [{ name: "output", className: "given", bars: true, values: values("output") }], compact));
}

function tile(title, ...content) {
  return make("section", "tile", make("h3", "", title), ...content);
}

// A value, written as the end of its name says.
function written(name, value) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") {
    if (name.endsWith("_bytes")) return bytes(value);
    if (name.endsWith("_percent")) return `${number(Math.round(value * 10) / 10)} %`;
    if (name.endsWith("_s") || name.endsWith("_seconds") || /^p\d\d$/.test(name)) return duration(value);
    return number(Math.round(value * 1000) / 1000);
  }
  return oneLine(shorten(typeof value === "object" ? JSON.stringify(value) : String(value), 300));
}

const worded = (name) => oneLine(name.replace(/_(bytes|s|seconds|percent|at)$/, "").replaceAll("_", " "));

function bytes(value) {
  for (const [factor, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) if (value >= factor) return `${(value / factor).toFixed(1)} ${unit}`;
  return `${number(value)} B`;
}

function duration(value) {
  if (value < 100) return seconds(value);
  const [days, hours, minutes] = [Math.floor(value / 86400), Math.floor(value / 3600) % 24, Math.floor(value / 60) % 60];
  return days ? `${days} d ${hours} h` : hours ? `${hours} h ${minutes} min` : `${minutes} min`;
}

function healthTile(health) {
  if (!health) return "";
  const { status, reason, ...rest } = health;
  const shown = make("p", "", make("span", `badge ${status === "ok" ? "completed" : "failed"}`, written("", status)), " ", reason ? make("span", "note", written("", reason)) : "");
  const groups = Object.entries(rest).filter(([, value]) => value !== null && typeof value === "object" && !Array.isArray(value));
  const plain = Object.entries(rest).filter(([, value]) => value === null || typeof value !== "object");
  return tile("Health", shown, facts(plain), ...groups.flatMap(([name, value]) => [make("h4", "", worded(name)), facts(Object.entries(value))]));
}

function facts(entries) {
  const list = make("dl", "pairs");
  for (const [name, value] of entries) list.append(make("div", "", make("dt", "", worded(name)), make("dd", "", written(name, value))));
  return list;
}

function limitsTile(limits) {
  if (!limits.length) return tile("Account", make("p", "empty", "The backends report no quota."));
  return tile("Account", ...limits.map((limit) => {
    const used = Math.max(0, Math.min(100, Number(limit.used_percent) || 0));
    const meter = makeMeter(used, oneLine(String(limit.name || "window")));
    const resets = limit.resets_in_seconds === undefined || limit.resets_in_seconds === null ? "" : `resets in ${duration(limit.resets_in_seconds)}`;
    return make("div", "limit", make("p", "line", make("b", "", oneLine(shorten(String(limit.name || "window"), 80))), make("span", "", `${number(used)} % used`)), meter, make("p", "note", resets));
  }));
}

function makeMeter(value, label) {
  const meter = make("meter");
  Object.assign(meter, { min: 0, max: 100, low: 70, high: 90, optimum: 0, value });
  meter.setAttribute("aria-label", `${label}, used`);
  return meter;
}

// A table of objects: the columns are the members that any of them has.
function table(rows, columns, caption) {
  const used = columns.filter(([name]) => rows.some((row) => row[name] !== undefined && row[name] !== null));
  const shown = make("table", "figures", make("caption", "unseen", caption), make("thead", "", make("tr", "", ...used.map(([name, label]) => {
    const head = make("th", rows.some((row) => typeof row[name] === "number") ? "number" : "", label);
    head.scope = "col";
    return head;
  }))));
  const body = make("tbody");
  for (const row of rows) {
    body.append(make("tr", row.available === false ? "missing" : "", ...used.map(([name]) => make("td", typeof row[name] === "number" ? "number" : "", written(name, row[name])))));
  }
  shown.append(body);
  const scroller = make("div", "scroller", shown);
  scroller.tabIndex = 0;
  scroller.setAttribute("role", "region");
  scroller.setAttribute("aria-label", caption);
  return scroller;
}

function childrenTile(children) {
  if (!children.length) return tile("Children", make("p", "empty", "No child, or none that this key may see."));
  const columns = [["name", "name"], ["backend", "backend"], ["state", "state"], ["pid", "pid"], ["version", "version"], ["turns", "turns"], ["restarts", "restarts"], ["memory_bytes", "memory"], ["uptime_s", "up for"]];
  return tile("Children", table(children.map((child) => ({ ...child, pid: child.pid === undefined || child.pid === null ? null : String(child.pid) })), columns, "Children"));
}

function byTile(what, rows) {
  if (!Array.isArray(rows) || !rows.length) return tile(`By ${what}`, make("p", "empty", "No requests in this time."));
  const columns = [["name", what], ["requests", "requests"], ["failed", "failed"], ["p50", "p50"], ["p99", "p99"], ["input", "tokens in"], ["output", "tokens out"], ["cost", "cost"]];
  return tile(`By ${what}`, table(rows, columns, `Figures by ${what}`));
}

function modelsTile(models) {
  if (!models.length) return tile("Models", make("p", "empty", "No models are known."));
  const columns = [["name", "model"], ["backend", "backend"], ["route", "route"], ["available", "available"], ["why", "why not"]];
  return tile("Models", table(models, columns, "Models and their routes"));
}
