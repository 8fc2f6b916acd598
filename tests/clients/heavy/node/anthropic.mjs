// The @anthropic-ai/sdk package on /v1/messages.

import Anthropic from "@anthropic-ai/sdk";
import { z } from "zod";
import { offer } from "./functions.mjs";
import { serve } from "./program.mjs";

const model = process.env.BRIDGE_MODEL;
// Its base URL has no version.
const baseURL = process.env.OPENAI_BASE_URL.replace(/\/v1$/, "");
const client = new Anthropic({ baseURL, apiKey: process.env.OPENAI_API_KEY, maxRetries: 0 });

const user = (content) => ({ role: "user", content });
const texts = (message) => message.content.filter((block) => block.type === "text").map((block) => block.text);

/** A message; when streamed, the one that the client's own helper puts together. */
async function ask(stream, body) {
  const request = { model, max_tokens: 9000, ...body };
  return stream ? await client.messages.stream(request).finalMessage() : await client.messages.create(request);
}

function count({ input_tokens, cache_read_input_tokens, output_tokens, output_tokens_details }) {
  const cached = cache_read_input_tokens;
  return [input_tokens + cached, cached, output_tokens, output_tokens_details.thinking_tokens];
}

/** The texts of a stream's events. */
async function* words(request, options) {
  for await (const event of await client.messages.create({ model, max_tokens: 9000, stream: true, ...request }, options)) {
    if (event.type === "content_block_delta" && event.delta.type === "text_delta") yield event.delta.text;
  }
}

async function plain({ prompt, stream }) {
  const messages = [user(prompt)];
  const pieces = [];
  if (!stream) {
    const { content, stop_reason, usage } = await ask(false, { messages });
    return { text: content[0].text, end: stop_reason, usage: count(usage) };
  }
  let end, usage;
  for await (const event of await client.messages.create({ model, max_tokens: 9000, messages, stream })) {
    if (event.type === "content_block_delta") pieces.push(event.delta.text);
    if (event.type === "message_delta") [end, usage] = [event.delta.stop_reason, event.usage];
  }
  return { text: pieces.join(""), pieces, end, usage: count(usage) };
}

async function stream_helper({ prompt }) {
  const kinds = [];
  const stream = client.messages.stream({ model, max_tokens: 9000, messages: [user(prompt)] });
  let snapshot = "";
  for (const kind of ["connect", "streamEvent", "contentBlock", "message", "finalMessage", "end"]) {
    stream.on(kind, (event) => kinds.push(event?.type && kind === "streamEvent" ? event.type : kind));
  }
  stream.on("text", (_, whole) => (snapshot = whole));
  return { text: await stream.finalText(), snapshot, kinds };
}

async function tool_loop({ prompt, stream }) {
  const executed = [];
  const run = {};
  const tools = offer(executed, (name, { run: execute, description, parameters }) => {
    run[name] = execute;
    return { name, description, input_schema: z.toJSONSchema(parameters) };
  });
  const messages = [user(prompt)];
  const steps = [];
  while (true) {
    const message = await ask(stream, { messages, tools });
    const used = message.content.filter((block) => block.type === "tool_use");
    steps.push({ text: texts(message).join(""), calls: used.map((block) => block.name) });
    if (message.stop_reason !== "tool_use") return { text: steps.at(-1).text, steps, executed };
    messages.push({ role: "assistant", content: message.content });
    messages.push(
      user(used.map(({ id, name, input }) => ({ type: "tool_result", tool_use_id: id, content: run[name](input) }))),
    );
  }
}

const thinking = { type: "adaptive" };

async function reasoning({ prompt, stream }) {
  const message = await ask(stream, { messages: [user(prompt)], thinking });
  const thoughts = message.content.filter((block) => block.type === "thinking");
  return { text: texts(message).join(""), reasoning: thoughts.map((block) => block.thinking) };
}

async function history({ prompts, stream }) {
  const messages = [];
  let message;
  for (const prompt of prompts) {
    messages.push(user(prompt));
    message = await ask(stream, { messages, thinking, system: "Be brief." });
    messages.push({ role: "assistant", content: message.content });
  }
  return { text: texts(message).join("") };
}

async function concurrent({ prompts, stream }) {
  const messages = await Promise.all(prompts.map((prompt) => ask(stream, { messages: [user(prompt)] })));
  return { texts: messages.map((message) => texts(message).join("")) };
}

async function cancel({ prompt }) {
  const controller = new AbortController();
  const pieces = [];
  for await (const piece of words({ messages: [user(prompt)] }, { signal: controller.signal })) {
    pieces.push(piece);
    controller.abort();
  }
  return { pieces };
}

async function rate_limit({ prompt, stream }) {
  return { text: texts(await ask(stream, { messages: [user(prompt)] })).join("") };
}

async function broken_stream({ prompt }) {
  const pieces = [];
  try {
    for await (const piece of words({ messages: [user(prompt)] })) pieces.push(piece);
  } catch (error) {
    return { pieces, error: error.message };
  }
}

async function retry({ prompt }) {
  const request = { model, max_tokens: 9000, messages: [user(prompt)] };
  return { text: texts(await client.messages.create(request, { maxRetries: 1 })).join("") };
}

async function models() {
  const listed = [];
  for await (const each of client.models.list({ limit: 5 })) listed.push(each.id);
  return { models: listed, retrieved: (await client.models.retrieve(model)).id };
}

await serve({
  plain,
  stream_helper,
  tool_loop,
  parallel_tools: tool_loop,
  unicode_arguments: tool_loop,
  no_arguments: tool_loop,
  text_and_call: tool_loop,
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
