// A turn in a few words: its row in a list, and the badge with its outcome.

import { make } from "./dom.js";
import { compact, moment, number, oneLine, plural, seconds, shorten } from "./text.js";

export const TURN = 54; // the height of a row

const OUTCOMES = ["completed", "incomplete", "failed", "cancelled"];

// What is written, and the class that colours it.
function state(row) {
  if (row.running) return ["running", "running"];
  return [row.outcome, OUTCOMES.includes(row.outcome) ? row.outcome : "other"];
}

export function badge(row) {
  const [name, known] = state(row);
  return make("span", `badge ${known}`, oneLine(shorten(name, 40)));
}

// As many digits as two numbers have room for in their column.
const fitted = (value) => (value < 10000 ? number(value) : compact(value));

export function turnRow(row) {
  const element = make("div", "row");
  const [name, known] = state(row);
  const [, time] = moment(row.ts);
  const extras = [
    row.calls.length ? plural(row.calls.length, "call") : null,
    row.invalid_arguments.length ? `${number(row.invalid_arguments.length)} not JSON` : null,
    row.repairs.length ? plural(row.repairs.length, "repair") : null,
    row.cost ? oneLine(shorten(row.cost, 40)) : null,
  ].filter(Boolean).join(", ");
  const preview = make("span", "preview");
  if (row.error) preview.append(make("span", "code", oneLine(shorten(row.error, 60))), " ");
  preview.append(oneLine(row.preview));
  const counts = [row.input_tokens, row.output_tokens];
  const tokens = make("span", "number tokens", row.input_tokens === null ? "–" : counts.map(fitted).join(" → "));
  if (row.input_tokens !== null) tokens.title = counts.map(number).join(" → ");
  element.append(
    make("span", "time", time),
    make("span", "model", oneLine(shorten(row.model, 80))),
    make("span", "number", make("span", "first", `${seconds(row.first_event_s)} / `), seconds(row.total_s)),
    tokens,
    make("span", `outcome ${known}`, oneLine(shorten(name, 16))),
    make("span", "second", preview, extras ? make("span", "extras", extras) : null),
  );
  return element;
}
