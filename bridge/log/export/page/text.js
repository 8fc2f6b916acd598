// Recorded text, made fit to be looked at.

import { button, make } from "./dom.js";

export const LONGEST = 100000; // characters of one string that are shown unasked
export const CONTROLS = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
const DECEIVING = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

export const escaped = (character) => "\\u" + character.charCodeAt(0).toString(16).padStart(4, "0");

// One line: whatever could move, hide or turn the text around it is written out.
export const oneLine = (text) => String(text).replace(CONTROLS, escaped);

// A text that keeps its lines; only what would reorder or overwrite it is written out.
export const readable = (text) => String(text).replace(DECEIVING, escaped);

export const shorten = (text, length) => (text.length > length ? text.slice(0, length) + "…" : text);

export function size(count) {
  if (count < 1000) return `${count} characters`;
  if (count < 1000000) return `${(count / 1000).toFixed(1)} k characters`;
  return `${(count / 1000000).toFixed(1)} M characters`;
}

// Put a text into an element: the beginning of a very long one, and a button for all of it.
export function putText(element, text, limit) {
  limit = limit || LONGEST;
  if (text.length <= limit) {
    element.append(readable(text));
    return element;
  }
  const shown = make("span", "", readable(text.slice(0, limit)));
  const more = button(`Show all ${size(text.length)}`, () => {
    shown.textContent = readable(text);
    more.remove();
  }, "more");
  element.append(shown, more);
  return element;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.0995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  if (value < 99.95) return `${value.toFixed(value < 9.995 ? 2 : 1)} s`;
  return `${Math.floor(value / 60)} m ${String(Math.round(value % 60)).padStart(2, "0")} s`;
}

export const since = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(4)}`;

export const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en-US"));

// In a few digits, for a narrow column or an axis: 1.5 k, 128 k, 2.0 M.
export function compact(value) {
  for (const [factor, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (value >= factor) return `${(value / factor).toFixed(value >= factor * 10 ? 0 : 1)} ${unit}`;
  return number(value && Math.round(value * 100) / 100);
}

export const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

// "2026-11-16T17:17:57.269024Z" → ["2026-11-16", "17:17:57"]; the log's times are UTC and stay so.
export function moment(ts) {
  const found = /^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)/.exec(ts || "");
  return found ? [found[1], found[2]] : ["", "–"];
}
