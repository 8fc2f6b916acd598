// A request as a command to copy: curl, Python, or `turnbridge exec`. The key stays in $OPENAI_API_KEY.

import { CONTROLS, escaped } from "./text.js";

// For shells: nothing within single quotes has a meaning. Text that a terminal could take for a command of its own, such as
// the end of a paste, is written with escapes, which bash, zsh and ksh read.
function quoted(text) {
  if (/^[\w@%+=:,./-]+$/.test(text)) return text;
  if (!HIDDEN.test(text)) return `'${text.replaceAll("'", "'\\''")}'`;
  const safe = text.replaceAll("\\", "\\\\").replaceAll("'", "\\'").replaceAll("\0", "\ufffd");
  return `$'${safe.replace(new RegExp(HIDDEN, "g"), escaped)}'`;
}
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/;

// JSON without invisible characters. No line of it can end a here-document, and it never has three quotes in a row.
const json = (value) => JSON.stringify(value, null, 2).split("\n").map((line) => line.replace(CONTROLS, escaped)).join("\n");

// Headers of the recorded request that change its meaning.
const TELLING = /^(anthropic-(version|beta)|x-bridge-tool-mode|openai-beta|x-goog-api-client)$/i;

function headersOf(said) {
  const recorded = (said.headers && said.headers.request) || [];
  const kept = recorded.filter(([name]) => TELLING.test(name));
  return [["Content-Type", "application/json"], ...kept].map(([name, value]) => [name, String(value).replace(/[\r\n]/g, " ")]);
}

export function asCurl({ root, path, body, said }) {
  const headers = headersOf(said).map(([name, value]) => `  -H ${quoted(`${name}: ${value}`)} \\\n`).join("");
  return `curl -N ${quoted(root + path)} \\\n  -H "Authorization: Bearer $OPENAI_API_KEY" \\\n${headers}  --data-binary @- <<'JSON'\n${json(body)}\nJSON\n`;
}

export function asPython({ root, path, body, said }) {
  const headers = headersOf(said).map(([name, value]) => `    ${pythonText(name)}: ${pythonText(value)},\n`).join("");
  return `import os
import urllib.request

BODY = r"""${json(body)}"""
HEADERS = {
    "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
${headers}}

request = urllib.request.Request(${pythonText(root + path)}, BODY.encode(), HEADERS)
with urllib.request.urlopen(request) as answer:
    for line in answer:
        print(line.decode(), end="")
`;
}

// A JSON string of ASCII is a Python string with the same value, except beyond U+FFFF.
const pythonText = (text) => JSON.stringify(text).replace(/[\u007f-\u{10ffff}]/gu, (character) => {
  const code = character.codePointAt(0);
  return code > 0xffff ? `\\U${code.toString(16).padStart(8, "0")}` : escaped(character);
});

// What `exec` has no option for is left out. The parts of every protocol become the items of Responses.
export function asExec({ root, body, said, model }) {
  const words = ["turnbridge", "exec", "--url", root, "--model", model];
  const system = said.asked.filter(([role, kind]) => role === "system" && kind === "text").map(([, , text]) => text).join("\n\n");
  if (system) words.push("--instructions", system);
  if (said.effort) words.push("--effort", said.effort);
  for (const [name, schema] of toolsOf(body)) words.push("--tool", `${name}:inline=${JSON.stringify(schema).replace(CONTROLS, escaped)}`);
  const choice = choiceOf(body.tool_choice);
  if (choice) words.push("--tool-choice", choice);
  const items = said.asked.map(itemOf).filter(Boolean);
  const lost = said.asked.length - items.length - said.asked.filter(([role, kind]) => role === "system" && kind === "text").length;
  const note = lost ? `# ${lost} part${lost === 1 ? "" : "s"} of the input (media, other items) cannot be passed to exec and ${lost === 1 ? "is" : "are"} left out.\n` : "";
  const options = words.slice(2).reduce((text, word) => text + (/^--[a-z-]+$/.test(word) ? ` \\\n  ${word}` : ` ${quoted(word)}`), "");
  return `${note}turnbridge exec${options} \\\n  --provider-key "$OPENAI_API_KEY" --input-json - <<'JSON'\n${json(items)}\nJSON\n`;
}

function itemOf([role, kind, text, name, callId]) {
  if (kind === "text" && role !== "system") return { role: role === "assistant" ? "assistant" : "user", content: text };
  if (kind === "call") return { type: "function_call", call_id: callId, name, arguments: text };
  if (kind === "output") return { type: "function_call_output", call_id: callId, output: text };
  return null;
}

// [name, schema] of the functions that a body of any protocol offers.
function toolsOf(body) {
  const tools = Array.isArray(body.tools) ? body.tools : [];
  const declared = tools.flatMap((tool) => (tool && (tool.functionDeclarations || tool.function_declarations)) || [tool]);
  return declared.map((tool) => (tool && tool.function) || tool)
    .filter((tool) => tool && typeof tool.name === "string")
    .map((tool) => [tool.name, tool.parameters || tool.input_schema || tool.parametersJsonSchema || { type: "object" }]);
}

function choiceOf(choice) {
  if (choice === "required" || choice === "auto") return choice === "auto" ? null : choice;
  if (choice === null || typeof choice !== "object") return null;
  const name = choice.name || (choice.function && choice.function.name);
  if (typeof name === "string") return `function:${name}`;
  return choice.type === "any" ? "required" : null;
}
