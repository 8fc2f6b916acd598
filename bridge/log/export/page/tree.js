// A JSON value that can be folded. Children are made when they are first looked at.

import { button, make } from "./dom.js";
import { CONTROLS, LONGEST, escaped, number, oneLine, plural, shorten, size } from "./text.js";

const MOST_CHILDREN = 200;

export function tree(value, open) {
  const root = make("div", "tree");
  root.append(treeNode(value, null, open === undefined ? 2 : open));
  return root;
}

function treeNode(value, name, open) {
  const label = name === null ? null : make("span", "key", oneLine(shorten(name, 400)));
  if (value === null || typeof value !== "object") {
    return make("div", "leaf", label, label && ": ", scalar(value));
  }
  const list = Array.isArray(value);
  const entries = list ? value.map((member, index) => [String(index), member]) : Object.entries(value);
  if (!entries.length) return make("div", "leaf", label, label && ": ", list ? "[]" : "{}");
  const details = make("details", "");
  const count = list ? plural(entries.length, "entry").replace("entrys", "entries") : plural(entries.length, "member");
  details.append(make("summary", "", label, label && ": ", make("span", "size", `${list ? "[" : "{"} ${count} ${list ? "]" : "}"}`)));
  const fill = () => {
    if (details.childElementCount === 1) children(details, entries, 0, open - 1);
  };
  if (open > 0 && entries.length <= 60) {
    details.open = true;
    fill();
  }
  details.addEventListener("toggle", fill);
  return details;
}

function children(details, entries, start, open) {
  const end = Math.min(entries.length, start + MOST_CHILDREN);
  for (const [name, member] of entries.slice(start, end)) details.append(treeNode(member, name, open));
  if (end < entries.length) {
    const more = button(`Show more (${number(entries.length - end)} left)`, () => {
      more.remove();
      children(details, entries, end, open);
    }, "more");
    details.append(more);
  }
}

function scalar(value) {
  if (typeof value !== "string") return make("span", value === null ? "null" : typeof value, String(value));
  const shown = make("span", "string");
  // As written in JSON, so that nothing in it is invisible.
  const quoted = (text) => JSON.stringify(text).replace(CONTROLS, escaped);
  if (value.length <= LONGEST) shown.append(quoted(value));
  else {
    const begin = make("span", "", quoted(value.slice(0, LONGEST)));
    const more = button(`Show all ${size(value.length)}`, () => {
      begin.textContent = quoted(value);
      more.remove();
    }, "more");
    shown.append(begin, more);
  }
  return shown;
}
