// Keys. Those of a single character can be switched off, for people who dictate.

import { field, openDialog } from "./dialog.js";
import { make } from "./dom.js";

const KEPT = "turnbridge-single-keys";
const KEYS = [
  ["/", "filter the turns"], ["↑ ↓", "move in the list"], ["[ ]", "previous, next turn of the list"], ["1 … 4", "views of a turn"],
  ["s", "send again"], ["c", "compare"], ["t", "turns"], ["o", "overview"], ["Esc", "close, back to the list"], ["?", "this help"],
];

function singleKeys() {
  try {
    return localStorage.getItem(KEPT) !== "off";
  } catch {
    return true;
  }
}

// `acts` by key. Nothing happens while someone types, or while a dialog is open.
export function listen(acts) {
  addEventListener("keydown", (event) => {
    const typing = event.target instanceof Element && event.target.closest("input:not([type=checkbox]), textarea, select");
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || document.querySelector("dialog[open]")) return;
    if (typing && !(event.key === "Escape" && event.target.id === "filter")) return;
    if (event.key !== "Escape" && !singleKeys()) return;
    if (acts[event.key] && acts[event.key]() !== false) event.preventDefault();
  });
}

export function showShortcuts() {
  const list = make("dl", "pairs keys");
  for (const [key, what] of KEYS) list.append(make("div", "", make("dt", "", make("kbd", "", key)), make("dd", "", what)));
  const box = make("input");
  Object.assign(box, { type: "checkbox", checked: singleKeys() });
  box.addEventListener("change", () => {
    try {
      localStorage.setItem(KEPT, box.checked ? "on" : "off");
    } catch {
      // Without storage it stays on.
    }
  });
  openDialog("Keyboard shortcuts", make("div", "", list, field("Keys of a single character", box)));
}
