// The @anthropic-ai/sdk package on /v1/messages.

import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";
import { CITY, offer } from "./functions.mjs";
import { serve } from "./program.mjs";

const model = process.env.BRIDGE_MODEL;
const client = new Anthropic({
  baseURL: process.env.OPENAI_BASE_URL.replace(/\/v1$/, ""),
  apiKey: process.env.OPENAI_API_KEY,
  maxRetries: 0,
});
const SIZE = { model, max_tokens: 4000 };
const THINKING = { thinking: { type: "adaptive" } };

const user = (content) => ({ role: "user", content });
const textOf = ({ content }) => content.map((block) => (block.type === "text" ? block.text : "")).join("");

/** A message; when streamed, the one that the client's own helper puts together. */
function ask(stream, body) {
  const request = { ...SIZE, ...body };
  return stream ? client.messages.stream(request).finalMessage() : client.messages.parse(request);
}

function count(usage) {
  const cached = usage.cache_read_input_tokens;
  const input = usage.input_tokens + cached + usage.cache_creation_input_tokens;
  return [input, cached, usage.output_tokens, usage.output_tokens_details.thinking_tokens];
}

async function plain({ prompt, stream }) {
  const request = { ...SIZE, messages: [user(prompt)] };
  if (!stream) {
    const message = await client.messages.create(request);
    return { text: textOf(message), end: message.stop_reason, usage: count(message.usage) };
  }
  const pieces = [];
  let end, usage;
  for await (const event of await client.messages.create({ ...request, stream })) {
    if (event.type === "content_block_delta") pieces.push(event.delta.text);
    if (event.type !== "message_delta") continue;
    end = event.delta.stop_reason;
    usage = event.usage;
  }
  return { text: pieces.join(""), pieces, end, usage: count(usage) };
}

async function stream_helper({ prompt }) {
  const kinds = [];
  const stream = client.messages.stream({ ...SIZE, messages: [user(prompt)] });
  let snapshot = "";
  for (const kind of ["connect", "contentBlock", "message", "finalMessage", "end"]) {
    stream.on(kind, () => kinds.push(kind));
  }
  stream.on("streamEvent", (event) => kinds.push(event.type));
  stream.on("text", (piece, text) => (snapshot = text));
  return { text: await stream.finalText(), snapshot, kinds };
}

async function tool_loop({ prompt, stream }) {
  const executed = [];
  const functions = new Map();
  const tools = offer(executed, (name, { run, parameters, description }) => {
    functions.set(name, run);
    return { name, description, input_schema: z.toJSONSchema(parameters) };
  });
  const messages = [user(prompt)];
  const steps = [];
  for (;;) {
    const message = await ask(stream, { messages, tools });
    const calls = message.content.filter((block) => block.type === "tool_use");
    const text = textOf(message);
    steps.push({ text, calls: calls.map((call) => call.name) });
    if (!calls.length) return { text, steps, executed };
    const results = calls.map(({ id, name, input }) => ({
      type: "tool_result",
      tool_use_id: id,
      content: functions.get(name)(input),
    }));
    messages.push({ role: "assistant", content: message.content }, user(results));
  }
}

async function tool_runner({ prompt, stream }) {
  const executed = [];
  const tools = offer(executed, (name, { run, parameters, description }) =>
    betaZodTool({ name, description, inputSchema: parameters, run }),
  );
  const runner = client.beta.messages.toolRunner({ ...SIZE, messages: [user(prompt)], tools, stream });
  const steps = [];
  for await (const answer of runner) {
    const message = stream ? await answer.finalMessage() : answer;
    const calls = message.content.filter((block) => block.type === "tool_use");
    steps.push({ text: textOf(message), calls: calls.map((call) => call.name) });
  }
  return { text: steps.at(-1).text, steps, executed };
}

async function structured({ prompt, stream }) {
  const message = await ask(stream, { messages: [user(prompt)], output_config: { format: zodOutputFormat(CITY) } });
  return { object: message.parsed_output };
}

async function reasoning({ prompt, stream }) {
  const message = await ask(stream, { messages: [user(prompt)], ...THINKING });
  const thoughts = message.content.filter((block) => block.type === "thinking");
  return { text: textOf(message), reasoning: thoughts.map((block) => block.thinking) };
}

async function history({ prompts, stream }) {
  const messages = [];
  let message;
  for (const prompt of prompts) {
    messages.push(user(prompt));
    message = await ask(stream, { system: "Be brief.", messages, ...THINKING });
    messages.push({ role: "assistant", content: message.content });
  }
  return { text: textOf(message) };
}

async function concurrent({ prompts, stream }) {
  const messages = await Promise.all(prompts.map((prompt) => ask(stream, { messages: [user(prompt)] })));
  return { texts: messages.map(textOf) };
}

async function cancel({ prompt }) {
  const controller = new AbortController();
  const options = { signal: controller.signal };
  const pieces = [];
  const request = { ...SIZE, messages: [user(prompt)], stream: true };
  for await (const event of await client.messages.create(request, options)) {
    if (event.type !== "content_block_delta") continue;
    pieces.push(event.delta.text);
    controller.abort();
  }
  return { pieces };
}

async function rate_limit({ prompt, stream }) {
  return { text: textOf(await ask(stream, { messages: [user(prompt)] })) };
}

async function broken_stream({ prompt }) {
  const pieces = [];
  try {
    const request = { ...SIZE, messages: [user(prompt)], stream: true };
    for await (const event of await client.messages.create(request)) {
      if (event.type === "content_block_delta") pieces.push(event.delta.text);
    }
  } catch (error) {
    return { pieces, error: error.message };
  }
}

async function retry({ prompt }) {
  const request = { ...SIZE, messages: [user(prompt)] };
  return { text: textOf(await client.messages.create(request, { maxRetries: 1 })) };
}

async function models() {
  const listed = [];
  for await (const { id } of client.models.list({ limit: 5 })) listed.push(id);
  return { models: listed, retrieved: (await client.models.retrieve(model)).id };
}

await serve({
  plain,
  stream_helper,
  tool_loop,
  tool_runner,
  parallel_tools: tool_loop,
  unicode_arguments: tool_loop,
  no_arguments: tool_loop,
  text_and_call: tool_loop,
  structured,
  reasoning,
  history,
  reasoning_history: history,
  concurrent,
  cancel,
  rate_limit,
  broken_stream,
  retry,
  models,
});
