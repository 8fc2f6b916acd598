// The openai package on /v1/responses.

import OpenAI from "openai";
import { ResponsesToolRunner, runnerFunction } from "openai/helpers/responses-tool-runner";
import { zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { CITY, offer } from "./functions.mjs";
import { serve } from "./program.mjs";

const model = process.env.BRIDGE_MODEL;
const client = new OpenAI({ maxRetries: 0 });

/** A response; when streamed, the one that the client's own helper puts together. */
function ask(stream, body) {
  const request = { model, ...body };
  return stream ? client.responses.stream(request).finalResponse() : client.responses.parse(request);
}

function count(usage) {
  return [
    usage.input_tokens,
    usage.input_tokens_details.cached_tokens,
    usage.output_tokens,
    usage.output_tokens_details.reasoning_tokens,
  ];
}

async function plain({ prompt, stream }) {
  if (!stream) {
    const { output_text: text, status: end, usage } = await client.responses.create({ model, input: prompt });
    return { text, end, usage: count(usage) };
  }
  const pieces = [];
  for await (const event of await client.responses.create({ model, input: prompt, stream })) {
    if (event.type === "response.output_text.delta") pieces.push(event.delta);
    if (event.type === "response.completed") {
      return { text: pieces.join(""), pieces, end: event.response.status, usage: count(event.response.usage) };
    }
  }
}

async function stream_helper({ prompt }) {
  const kinds = [];
  const stream = client.responses.stream({ model, input: prompt });
  let snapshot = "";
  stream.on("event", (event) => kinds.push(event.type));
  stream.on("response.output_text.delta", (event) => (snapshot = event.snapshot));
  return { text: (await stream.finalResponse()).output_text, snapshot, kinds };
}

async function tool_loop({ prompt, stream }) {
  const executed = [];
  const functions = new Map();
  const tools = offer(executed, (name, { run, ...rest }) => {
    functions.set(name, run);
    return zodResponsesFunction({ name, ...rest });
  });
  const input = [{ role: "user", content: prompt }];
  const steps = [];
  for (;;) {
    const { output, output_text: text } = await ask(stream, { input, tools });
    const calls = output.filter((item) => item.type === "function_call");
    steps.push({ text, calls: calls.map((call) => call.name) });
    if (!calls.length) return { text, steps, executed };
    input.push(...output);
    for (const call of calls) {
      const result = functions.get(call.name)(call.parsed_arguments);
      input.push({ type: "function_call_output", call_id: call.call_id, output: result });
    }
  }
}

async function tool_runner({ prompt, stream }) {
  const executed = [];
  const functions = offer(executed, (name, { run, ...rest }) =>
    runnerFunction(zodResponsesFunction({ name, ...rest, function: run })),
  );
  const runner = new ResponsesToolRunner({ functions });
  const steps = [];
  for await (const { response } of runner.iterate(client, { model, input: prompt }, { stream })) {
    const calls = response.output.filter((item) => item.type === "function_call");
    steps.push({ text: response.output_text, calls: calls.map((call) => call.name) });
  }
  return { text: steps.at(-1).text, steps, executed };
}

async function structured({ prompt, stream }) {
  const response = await ask(stream, { input: prompt, text: { format: zodTextFormat(CITY, "city") } });
  return { object: response.output_parsed };
}

async function reasoning({ prompt, stream }) {
  const { output, output_text: text } = await ask(stream, { input: prompt, reasoning: { summary: "auto" } });
  const thoughts = output.filter((item) => item.type === "reasoning");
  return { text, reasoning: thoughts.flatMap((item) => item.summary.map((part) => part.text)) };
}

async function history({ prompts, stream }) {
  const input = [];
  let response;
  for (const content of prompts) {
    input.push({ role: "user", content });
    response = await ask(stream, { instructions: "Be brief.", input });
    input.push(...response.output);
  }
  return { text: response.output_text };
}

async function concurrent({ prompts, stream }) {
  const responses = await Promise.all(prompts.map((input) => ask(stream, { input })));
  return { texts: responses.map((response) => response.output_text) };
}

async function cancel({ prompt }) {
  const controller = new AbortController();
  const options = { signal: controller.signal };
  const pieces = [];
  for await (const event of await client.responses.create({ model, input: prompt, stream: true }, options)) {
    if (event.type !== "response.output_text.delta") continue;
    pieces.push(event.delta);
    controller.abort();
  }
  return { pieces };
}

async function rate_limit({ prompt, stream }) {
  return { text: (await ask(stream, { input: prompt })).output_text };
}

async function broken_stream({ prompt }) {
  const pieces = [];
  for await (const event of await client.responses.create({ model, input: prompt, stream: true })) {
    if (event.type === "response.output_text.delta") pieces.push(event.delta);
    if (event.type === "response.failed") return { pieces, error: event.response.error.message };
  }
}

async function retry({ prompt }) {
  const response = await client.responses.create({ model, input: prompt }, { maxRetries: 1 });
  return { text: response.output_text };
}

async function models() {
  const listed = [];
  for await (const { id } of client.models.list()) listed.push(id);
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
