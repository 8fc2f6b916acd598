// What can be done with a turn: copy it as a command, send it again, compare, keep as a case, export, cancel.

import { act, exactJson, requestOfTurn, turnPath } from "./api.js";
import { asCurl, asExec, asPython } from "./commands.js";
import { field, openDialog, textToCopy, toast } from "./dialog.js";
import { button, make } from "./dom.js";
import { badge } from "./row.js";
import { moment, oneLine, shorten } from "./text.js";

const BRIDGE = "http://127.0.0.1:11435"; // of a recording, whose bridge is not the server of this page
const MOST_CHOICES = 200;

// `about` is what the bridge said of itself, `list` the rows in the list, `go` leads elsewhere, `origin` names the turn
// that this one repeats.
export function actionBar(turn, { about, list, go, origin }) {
  const { row, said } = turn;
  const bar = make("div", "actions");
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", "Actions");
  const add = (label, doIt, name, className) => {
    const each = button(label, async () => {
      each.disabled = true;
      try {
        await doIt();
      } catch (error) {
        toast(error.message);
      } finally {
        each.disabled = false;
      }
    }, className);
    each.dataset.action = name;
    bar.append(each);
  };
  if (about.live && about.operator && row.running) add("Cancel", () => act(`${turnPath(row.id)}/cancel`), "cancel", "danger");
  if (origin) add("Compare with the original", () => go.compare(origin, row.id), "origin", "primary");
  if (about.live) add("Send again…", async () => resend(turn, await requestOf(turn), about, go), "send");
  add("Compare…", () => chooseOther(row, said, list(), go), "compare");
  add("Copy as…", async () => copyAs(turn, await requestOf(turn), about), "copy");
  if (about.live) add("Save as case…", () => saveCase(row), "case");
  bar.append(exportMenu(row));
  return bar;
}

async function requestOf(turn) {
  const request = (await requestOfTurn(turn.row.id)) || {};
  if (request.body === undefined || request.body === null) throw new Error("The body of this request is not on record.");
  return request;
}

function copyAs({ row, said }, request, about) {
  const facts = { root: about.live ? location.origin : BRIDGE, path: request.path || said.path, body: request.body, said, model: said.requested || row.model };
  const shown = make("div", "");
  const choices = make("div", "choices");
  choices.setAttribute("role", "group");
  choices.setAttribute("aria-label", "Form");
  for (const [label, write] of [["curl", asCurl], ["Python", asPython], ["turnbridge exec", asExec]]) {
    const each = button(label, () => {
      for (const other of choices.children) other.setAttribute("aria-pressed", String(other === each));
      shown.replaceChildren(textToCopy(write(facts)));
    }, "chip");
    choices.append(each);
  }
  openDialog("Copy as a command", make("div", "", choices, make("p", "note", "The key is read from $OPENAI_API_KEY."), shown), [], "large");
  choices.firstChild.click();
}

// The last text of the user, wherever its protocol puts it: how to read it, and a copy of the body with another one.
function promptOf(body) {
  if (typeof body.input === "string") return [body.input, (text) => ({ ...body, input: text })];
  for (const name of ["input", "messages", "contents"]) {
    const list = body[name];
    if (!Array.isArray(list)) continue;
    const at = list.findLastIndex((item) => item && item.role === "user" && (item.content !== undefined || item.parts !== undefined));
    if (at < 0) continue;
    const replaced = (item) => ({ ...body, [name]: list.map((each, index) => (index === at ? item : each)) });
    const item = list[at];
    if (typeof item.content === "string") return [item.content, (text) => replaced({ ...item, content: text })];
    const inner = item.parts ? "parts" : "content";
    const parts = Array.isArray(item[inner]) ? item[inner] : [];
    const part = parts.findLastIndex((each) => each && typeof each.text === "string");
    if (part < 0) continue;
    return [parts[part].text, (text) => replaced({ ...item, [inner]: parts.map((each, index) => (index === part ? { ...each, text } : each)) })];
  }
  return null;
}

function resend({ row, said }, request, about, go) {
  const original = JSON.stringify(request.body, null, 2);
  const found = promptOf(request.body);
  const model = make("input");
  Object.assign(model, { name: "model", value: said.requested || row.model, autocomplete: "off", spellcheck: false });
  model.setAttribute("list", "models");
  const mode = make("select", "", new Option("as configured", ""), new Option("text", "text"), new Option("native", "native"));
  mode.name = "tool_mode";
  const prompt = make("textarea");
  Object.assign(prompt, { name: "prompt", rows: 6, value: found ? found[0] : "" });
  const whole = make("textarea", "code");
  Object.assign(whole, { name: "body", rows: 14, value: original, spellcheck: false });
  const told = make("p", "bad");
  told.setAttribute("role", "alert");

  prompt.addEventListener("input", () => {
    try {
      const now = promptOf(exactJson(whole.value));
      whole.value = JSON.stringify(now[1](prompt.value), null, 2);
    } catch {
      // The body below is not JSON at the moment; its own field says so.
    }
  });
  const check = () => {
    try {
      const value = exactJson(whole.value);
      const now = promptOf(value);
      if (now && document.activeElement !== prompt) prompt.value = now[0];
      told.textContent = value === null || typeof value !== "object" ? "The body must be a JSON object." : "";
    } catch (error) {
      told.textContent = `The body is not JSON: ${error.message}`;
    }
    return !told.textContent;
  };
  whole.addEventListener("input", check);

  const send = button("Send", async () => {
    if (!check()) return;
    send.disabled = true;
    const members = [];
    if (model.value.trim() && model.value.trim() !== (said.requested || row.model)) members.push(`"model":${JSON.stringify(model.value.trim())}`);
    if (mode.value) members.push(`"tool_mode":${JSON.stringify(mode.value)}`);
    if (whole.value !== original) members.push(`"body":${whole.value}`);
    try {
      const { id } = await act(`${turnPath(row.id)}/send`, `{${members.join(",")}}`);
      dialog.close();
      go.turn(id, row.id);
    } catch (error) {
      told.textContent = error.message;
    } finally {
      send.disabled = false;
    }
  }, "primary");
  const rest = make("details", "", make("summary", "", "Whole request body, with its tools (JSON)"), field("Request body", whole));
  rest.open = found === null;
  const content = make("div", "form",
    make("div", "few", field("Model", model), field("Tool mode", mode)),
    found ? field("Last message of the user", prompt) : "", rest, told,
    make("p", "note", "It is sent with the key of this session, and is a turn of its own in the list."));
  const dialog = openDialog("Send again", content, [send], "large");
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send.click();
  });
  (found ? prompt : whole).focus();
}

function chooseOther(row, said, rows, go) {
  const search = make("input");
  search.type = "search";
  search.placeholder = "Filter by model, id or text";
  search.setAttribute("aria-label", "Filter turns to compare with");
  const list = make("ul", "others");
  const fill = () => {
    const wanted = search.value.trim().toLowerCase();
    const near = [said.previous, said.next].filter(Boolean);
    const others = rows.filter((other) => other.id !== row.id && (!wanted || `${other.id} ${other.model} ${other.preview} ${other.outcome}`.toLowerCase().includes(wanted)));
    others.sort((a, b) => near.includes(b.id) - near.includes(a.id));
    list.replaceChildren(...others.slice(0, MOST_CHOICES).map((other) => {
      const each = button("", () => {
        dialog.close();
        go.compare(row.id, other.id);
      });
      each.append(make("span", "time", moment(other.ts)[1]), make("b", "", oneLine(shorten(other.model, 60))), badge(other), make("span", "preview", near.includes(other.id) ? "(same conversation) " : "", oneLine(other.preview)));
      return make("li", "", each);
    }));
    if (!others.length) list.append(make("li", "empty", "No other turn in the list."));
  };
  search.addEventListener("input", fill);
  fill();
  const dialog = openDialog("Compare with", make("div", "form", search, list), [], "large");
  search.focus();
}

async function saveCase(row) {
  const { yaml } = await act(`${turnPath(row.id)}/case`);
  const note = make("p", "note", "Save it into a directory of cases, correct what is expected, and run it with ", make("code", "", "turnbridge lab run"), ".");
  const name = `case-${row.id.replace(/^req_/, "").replace(/[^\w-]/g, "").slice(0, 12) || "turn"}.yaml`;
  openDialog("Save as a lab case", make("div", "", note, textToCopy(yaml, name)), [], "large");
}

function exportMenu(row) {
  const menu = make("details", "menu", make("summary", "", "Export"));
  const list = make("div", "menulist");
  for (const [format, label] of [["html", "HTML page"], ["har", "HAR for browser tools"], ["jsonl", "JSON Lines"]]) {
    const link = make("a", "", label);
    link.href = `/page/api/${turnPath(row.id)}/export?format=${format}`;
    link.setAttribute("download", "");
    list.append(link);
  }
  menu.append(list);
  menu.addEventListener("focusout", (event) => {
    if (!menu.contains(event.relatedTarget)) menu.open = false;
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    menu.firstChild.focus();
    event.stopPropagation();
  });
  return menu;
}
