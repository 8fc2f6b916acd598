// The openai package on /v1/chat/completions.

import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { CITY, offer } from "./functions.mjs";
import { serve } from "./program.mjs";

const model = process.env.BRIDGE_MODEL;
const client = new OpenAI({ maxRetries: 0 });

const user = (content) => ({ role: "user", content });

/** A completion's one choice; when streamed, the one that the client's own helper puts together. */
async function ask(stream, body) {
  const request = { model, ...body };
  const completion = stream
    ? await client.chat.completions.stream(request).finalChatCompletion()
    : await client.chat.completions.parse(request);
  return completion.choices[0];
}

function count(usage) {
  return [
    usage.prompt_tokens,
    usage.prompt_tokens_details.cached_tokens,
    usage.completion_tokens,
    usage.completion_tokens_details.reasoning_tokens,
  ];
}

async function plain({ prompt, stream }) {
  const messages = [user(prompt)];
  if (!stream) {
    const { choices, usage } = await client.chat.completions.create({ model, messages });
    return { text: choices[0].message.content, end: choices[0].finish_reason, usage: count(usage) };
  }
  const pieces = [];
  let end, usage;
  const request = { model, messages, stream, stream_options: { include_usage: true } };
  for await (const chunk of await client.chat.completions.create(request)) {
    const [choice] = chunk.choices;
    if (choice?.delta.content) pieces.push(choice.delta.content);
    end = choice?.finish_reason ?? end;
    usage = chunk.usage ?? usage;
  }
  return { text: pieces.join(""), pieces, end, usage: count(usage) };
}

async function stream_helper({ prompt }) {
  const kinds = [];
  const stream = client.chat.completions.stream({ model, messages: [user(prompt)] });
  let snapshot = "";
  for (const kind of ["connect", "chunk", "content", "content.done", "message", "chatCompletion", "end"]) {
    stream.on(kind, () => kinds.push(kind));
  }
  stream.on("content.delta", (event) => (snapshot = event.snapshot));
  return { text: await stream.finalContent(), snapshot, kinds };
}

async function tool_loop({ prompt, stream }) {
  const executed = [];
  const tools = offer(executed, (name, { run, ...rest }) => zodFunction({ name, ...rest, function: run }));
  const runner = client.chat.completions.runTools({ model, messages: [user(prompt)], tools, stream });
  const text = await runner.finalContent();
  const said = runner.messages.filter((message) => message.role === "assistant");
  const steps = said.map(({ content, tool_calls }) => ({
    text: content ?? "",
    calls: (tool_calls ?? []).map((call) => call.function.name),
  }));
  return { text, steps, executed };
}

async function structured({ prompt, stream }) {
  const format = zodResponseFormat(CITY, "city");
  return { object: (await ask(stream, { messages: [user(prompt)], response_format: format })).message.parsed };
}

// The client has no name for reasoning in chat, but hands on the members that it does not know.
async function reasoning({ prompt, stream }) {
  const messages = [user(prompt)];
  if (!stream) {
    const { content, reasoning_content } = (await ask(false, { messages })).message;
    return { text: content, reasoning: [reasoning_content] };
  }
  let text = "";
  let thoughts = "";
  for await (const { choices } of await client.chat.completions.create({ model, messages, stream })) {
    text += choices[0].delta.content ?? "";
    thoughts += choices[0].delta.reasoning_content ?? "";
  }
  return { text, reasoning: [thoughts] };
}

async function history({ prompts, stream }) {
  const messages = [{ role: "system", content: "Be brief." }];
  for (const prompt of prompts) {
    messages.push(user(prompt));
    messages.push((await ask(stream, { messages })).message);
  }
  return { text: messages.at(-1).content };
}

async function concurrent({ prompts, stream }) {
  const choices = await Promise.all(prompts.map((prompt) => ask(stream, { messages: [user(prompt)] })));
  return { texts: choices.map((choice) => choice.message.content) };
}

async function cancel({ prompt }) {
  const controller = new AbortController();
  const options = { signal: controller.signal };
  const request = { model, messages: [user(prompt)], stream: true };
  const pieces = [];
  for await (const { choices } of await client.chat.completions.create(request, options)) {
    if (!choices[0].delta.content) continue;
    pieces.push(choices[0].delta.content);
    controller.abort();
  }
  return { pieces };
}

async function rate_limit({ prompt, stream }) {
  return { text: (await ask(stream, { messages: [user(prompt)] })).message.content };
}

async function broken_stream({ prompt }) {
  const pieces = [];
  try {
    const request = { model, messages: [user(prompt)], stream: true };
    for await (const { choices } of await client.chat.completions.create(request)) {
      if (choices[0].delta.content) pieces.push(choices[0].delta.content);
    }
  } catch (error) {
    return { pieces, error: error.message };
  }
}

async function retry({ prompt }) {
  const request = { model, messages: [user(prompt)] };
  const completion = await client.chat.completions.create(request, { maxRetries: 1 });
  return { text: completion.choices[0].message.content };
}

await serve({
  plain,
  stream_helper,
  tool_loop,
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
});
