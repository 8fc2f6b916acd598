// The answer of a turn that runs, as it arrives: text, folded thoughts, and what the parser makes of calls.

import { make } from "./dom.js";
import { number, oneLine, readable, shorten } from "./text.js";

const KEPT = 60000; // characters of one stretch that are on the screen while it grows
const CAPTIONS = { call: "call", repair: "repaired", reject: "refused, left as text" };

export class Streamed {
  // `scroller` follows the end of the text for as long as it is scrolled there.
  constructor(scroller) {
    this.scroller = scroller;
    this.element = make("div", "streamed");
    this.clear();
  }

  clear() {
    this.choices = new Map();
    this.waiting = [];
    this.element.replaceChildren(make("p", "empty", "Nothing of the answer has arrived yet."));
  }

  take(piece) {
    this.waiting.push(piece);
    if (this.waiting.length === 1) requestAnimationFrame(() => this.flush());
  }

  flush() {
    const waiting = this.waiting;
    this.waiting = [];
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    const atEnd = scrollHeight - scrollTop - clientHeight < 40;
    for (const piece of waiting) this.put(piece);
    if (atEnd) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  put({ choice, kind, text, name, new: begins }) {
    if (!this.choices.size) this.element.replaceChildren();
    let place = this.choices.get(choice);
    if (!place) {
      place = { element: make("div", "choice"), stretch: null };
      if (choice) place.element.append(make("h3", "", `Choice ${choice + 1}`));
      this.choices.set(choice, place);
      this.element.append(place.element);
    }
    if (!place.stretch || place.stretch.kind !== kind || begins) {
      place.stretch = makeStretch(kind, name);
      place.element.append(place.stretch.element);
    }
    place.stretch.append(text);
  }
}

function makeStretch(kind, name) {
  if (kind === "repair" || kind === "reject") {
    const list = make("span", "");
    const append = (text) => list.append(`${list.textContent ? ", " : ""}${oneLine(shorten(text, 300))}`);
    return { kind, append, element: make("p", `taken ${kind}`, make("span", "caption", `${CAPTIONS[kind]}: `, list)) };
  }
  const text = document.createTextNode("");
  const left = make("span", "note");
  let length = 0;
  let size = null;
  const append = (piece) => {
    length += piece.length;
    text.appendData(readable(piece));
    if (text.length > KEPT * 2) {
      text.deleteData(0, text.length - KEPT);
      left.textContent = `The earlier ${number(length - KEPT)} characters are shown when the turn has ended. … `;
    }
    if (size) size.textContent = `${number(length)} characters`;
  };
  if (kind === "thought") {
    size = make("span", "note");
    return { kind, append, element: make("details", "thought", make("summary", "", "Thinking ", size), make("div", "said", left, text)) };
  }
  if (kind === "call") {
    const caption = make("span", "caption", `call${name ? ` — ${oneLine(shorten(name, 200))}` : ""}`);
    return { kind, append, element: make("div", "taken call", caption, make("pre", "", left, text)) };
  }
  return { kind, append, element: make("div", "said", left, text) };
}
