// What surrounds a turn: headers, what the bridge added to the request and left out of it, its thread, its child.

import { make } from "./dom.js";
import { number, oneLine, putText, shorten } from "./text.js";

export function contextView(said, row) {
  const view = make("div", "conversation context");
  const group = (title, ...content) => view.append(make("section", "", make("h3", "", title), ...content));
  const thread = said.thread && Object.entries(said.thread);
  if (said.left_out) view.append(make("p", "notice", `${number(said.left_out)} bytes of this turn did not fit into the page's memory. Record an event log (--log-events), or raise PROXY_PAGE_MEMORY.`));
  group("Turn", pairs([["key", row.key], ["protocol", row.protocol], ["backend", said.backend || row.backend], ["cost", row.cost], ["reason", row.reason]]));
  group("Thread", thread && thread.length ? pairs(thread) : make("p", "empty", "No thread is on record."));
  group("Left out of the request", Array.isArray(said.dropped) && said.dropped.length
    ? pairs(said.dropped.map((option) => (Array.isArray(option) ? option : [option, "not supported by the backend"])))
    : make("p", "empty", "Nothing: the backend got every option."));
  group("Tool text that the bridge added", said.instructions ? putText(make("pre", "raw"), said.instructions) : make("p", "empty", "None: no tools, native tools, or a key that may not see it."));
  const { request, answer } = said.headers || {};
  group("Request headers", request && request.length ? pairs(request) : make("p", "empty", "Never recorded: they may hold secrets."));
  group("Answer headers", answer && answer.length ? pairs(answer) : make("p", "empty", "Not on record."));
  if (said.stderr && said.stderr.length) group("stderr of the child", putText(make("pre", "raw"), said.stderr.join("\n")));
  return view;
}

// Names and values. A value may be anything; what is unknown is left out.
function pairs(entries) {
  const list = make("dl", "pairs");
  for (const [name, value] of entries) {
    if (value === null || value === undefined || value === "") continue;
    const text = typeof value === "boolean" ? (value ? "yes" : "no") : typeof value === "object" ? JSON.stringify(value) : String(value);
    list.append(make("div", "", make("dt", "", oneLine(shorten(String(name), 200))), make("dd", "", oneLine(shorten(text, 4000)))));
  }
  return list.childElementCount ? list : make("p", "empty", "Nothing on record.");
}
