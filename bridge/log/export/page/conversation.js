// What was asked and what was answered, as people read it.

import { button, make } from "./dom.js";
import { LONGEST, number, oneLine, plural, putText, readable, shorten } from "./text.js";
import { prettyJson } from "./pretty.js";

const FOLDED = 1600; // characters of one part of a question that are shown unasked
const EARLIER = 12; // parts of a question that are shown unasked

export function conversation(said) {
  return make("div", "conversation", askedSection(said), ...answeredSections(said));
}

function callNames(said) {
  const calls = new Map();
  const everything = [...said.asked, ...said.answers.flatMap((answer) => answer.parts)];
  for (const [, kind, , name, id] of everything) if (kind === "call" && id) calls.set(id, name);
  return calls;
}

export function askedSection(said) {
  const calls = callNames(said);
  const asked = section("Asked", said.tools.length ? `${plural(said.tools.length, "tool")} offered` : "no tools offered");
  if (said.tools.length) asked.append(names(said.tools));
  if (!said.body) asked.append(make("p", "empty", "The request's body is not in the log, or could not be read."));
  let parts = said.asked;
  if (parts.length > EARLIER) {
    const hidden = parts.slice(0, parts.length - EARLIER);
    parts = parts.slice(-EARLIER);
    const more = button(`Show ${plural(hidden.length, "earlier part")}`, () => {
      more.replaceWith(...hidden.map((entry) => part(entry, calls, FOLDED)));
    }, "more");
    asked.append(more);
  }
  asked.append(...parts.map((entry) => part(entry, calls, FOLDED)));
  return asked;
}

function answeredSections(said) {
  const calls = callNames(said);
  return said.answers.map((answer, index) => {
    const title = said.answers.length > 1 ? `Answered, choice ${index + 1}` : "Answered";
    const notes = [answer.finish, said.source === "backend" ? "as the backend said it; this request did not get it" : null];
    const answered = section(title, notes.filter(Boolean).map(oneLine).join(" · "));
    const worded = answer.parts.filter(([, kind, text]) => kind !== "text" || text.trim());
    answered.append(...worded.map((entry) => part(entry, calls, LONGEST)));
    if (!answer.parts.length) answered.append(make("p", "empty", said.error ? "Nothing but the error above." : "Nothing on record."));
    return answered;
  });
}

export function section(title, note) {
  return make("section", "", make("h3", "", title, note ? make("span", "note", note) : null));
}

function names(list) {
  const shown = make("p", "names");
  for (const name of list.slice(0, 60)) shown.append(make("code", "", oneLine(shorten(name, 80))), " ");
  if (list.length > 60) shown.append(`and ${number(list.length - 60)} more`);
  return shown;
}

function part([role, kind, text, name, callId], calls, limit) {
  const row = make("div", `part ${kind}`);
  row.append(make("div", "role", kind === "reasoning" ? "reasoning" : oneLine(shorten(role, 24))));
  const body = make("div", "body");
  row.append(body);
  if (kind === "call") body.append(card("call", name || "?", callId, text));
  else if (kind === "output") body.append(card("output of", calls.get(callId) || "a call", callId, text));
  else if (kind === "media" || kind === "other") body.append(card(kind === "media" ? "media" : "item", name || "?", "", text));
  else body.append(putText(make("div", "said"), (text || "").trimEnd(), limit));
  return row;
}

function card(what, name, id, text) {
  const head = make("div", "head", make("span", "what", what), make("code", "name", oneLine(shorten(name, 200))));
  if (id) head.append(make("code", "id", oneLine(shorten(id, 80))));
  text = text || "";
  const pretty = text.length <= LONGEST ? prettyJson(text) : null;
  if (what === "call" && pretty === null && text) head.append(make("span", "note", "not a JSON object"));
  const shown = make("pre", "");
  shown.tabIndex = 0; // a long one scrolls, also with the keyboard
  return make("div", "card", head, putText(shown, pretty === null ? text || "(empty)" : pretty));
}

// The model's own words. Tags stand out; what the parser accepted, repaired or rejected is marked.
const KINDS = { call: "call", repair: "repaired", reject: "refused, left as text" };

export function heard(said) {
  const view = make("div", "heard");
  const seen = new Set(said.heard.flat().map((stretch) => stretch[1]).filter(Boolean));
  if (seen.size) {
    const legend = make("p", "legend");
    for (const [kind, label] of Object.entries(KINDS)) if (seen.has(kind)) legend.append(make("span", `swatch ${kind}`, label), " ");
    view.append(legend);
  }
  for (const reason of said.rejects) view.append(make("p", "notice", `Noted by the parser: ${oneLine(reason)}`));
  said.heard.forEach((stretches, index) => {
    if (said.heard.length > 1) view.append(make("h3", "", `Message ${index + 1} of ${said.heard.length}`));
    const text = make("pre", "raw");
    for (const [words, kind, note] of stretches) {
      const place = kind ? make("span", `taken ${KINDS[kind] ? kind : "call"}`) : text;
      if (kind) {
        place.append(make("span", "caption", `${KINDS[kind] || "note"}${note ? ` — ${oneLine(shorten(note, 300))}` : ""}`));
        text.append(place);
      }
      words.length > LONGEST ? putText(place, words) : tagged(place, words);
    }
    view.append(text);
  });
  if (!said.heard.length) view.append(make("p", "empty", "No text of the model is in the log."));
  return view;
}

function tagged(place, words) {
  for (const piece of words.split(/(<\/?tool_call>)/)) {
    if (/^<\/?tool_call>$/.test(piece)) place.append(make("b", "tag", piece));
    else if (piece) place.append(readable(piece));
  }
}
