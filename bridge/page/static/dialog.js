// Dialogs: modal, closed with Escape, the focus returns to where it was.

import { button, make } from "./dom.js";
import { readable } from "./text.js";

let count = 0;

export function openDialog(title, content, buttons = [], className = "") {
  count += 1;
  const heading = make("h2", "", title);
  heading.id = `dialog-${count}`;
  const dialog = make("dialog", className);
  dialog.setAttribute("aria-labelledby", heading.id);
  const close = button("Close", () => dialog.close(), "close");
  dialog.append(make("div", "dialoghead", heading, close), content, buttons.length ? make("div", "dialogfoot", ...buttons) : "");
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // beside it
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

export function field(label, control, note) {
  const shown = make("label", "field", make("span", "", label), control);
  if (note) shown.append(make("span", "note", note));
  return shown;
}

// Text to take along: shown, copied with one button, and saved as a file where that makes sense.
export function textToCopy(text, fileName) {
  const shown = make("pre", "tocopy", readable(text));
  shown.tabIndex = 0;
  const told = make("span", "note");
  told.setAttribute("role", "status");
  const copy = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(text);
      told.textContent = "Copied.";
    } catch {
      // Not allowed, or not a secure context.
      getSelection().selectAllChildren(shown);
      told.textContent = "Selected: press Ctrl+C.";
    }
  }, "primary");
  const foot = make("div", "dialogfoot", told, copy);
  if (fileName) foot.append(button("Download", () => saveFile(text, fileName)));
  return make("div", "copyable", shown, foot);
}

function saveFile(text, name) {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

// An error that does not get in the way, and stays until it is dismissed.
export function toast(message) {
  const shown = make("div", "toast", make("span", "", message), button("Dismiss", () => shown.remove()));
  shown.setAttribute("role", "alert");
  document.body.append(shown);
}
