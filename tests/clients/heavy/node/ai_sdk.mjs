// The AI SDK with one of its providers: node ai_sdk.mjs responses|chat|compatible

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, isStepCount, Output, streamObject, streamText, tool } from "ai";
import { CITY, offer } from "./functions.mjs";
import { serve } from "./program.mjs";

const { BRIDGE_MODEL, OPENAI_API_KEY: apiKey, OPENAI_BASE_URL: baseURL } = process.env;

const PROVIDERS = {
  responses: () => createOpenAI()(BRIDGE_MODEL),
  chat: () => createOpenAI().chat(BRIDGE_MODEL),
  compatible: () =>
    createOpenAICompatible({
      name: "bridge",
      baseURL,
      apiKey,
      // Both are off in this provider unless a user says that the server can do it.
      includeUsage: true,
      supportsStructuredOutputs: true,
    })(BRIDGE_MODEL),
};
const kind = process.argv[2];
const model = PROVIDERS[kind]();

/** The members of a result that the cases look at. A stream is read to its end; its error is thrown. */
async function ask(stream, options) {
  const request = { model, maxRetries: 0, ...options };
  if (!stream) return generateText(request);
  const pieces = [];
  // Errors are parts of the stream; without onError they are written out, too.
  const result = streamText({ ...request, onError: () => {} });
  for await (const part of result.stream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") pieces.push(part.text);
    if (part.type === "abort") return { pieces, aborted: true };
  }
  return {
    pieces,
    text: await result.text,
    output: options.output && (await result.output),
    steps: await result.steps,
    usage: await result.usage,
    finishReason: await result.finishReason,
    reasoning: await result.reasoning,
    responseMessages: await result.responseMessages,
  };
}

async function plain({ prompt, stream }) {
  const { text, pieces, usage, finishReason } = await ask(stream, { prompt });
  const { inputTokens, inputTokenDetails, outputTokens, outputTokenDetails } = usage;
  const numbers = [inputTokens, inputTokenDetails.cacheReadTokens, outputTokens, outputTokenDetails.reasoningTokens];
  return { text, pieces, end: finishReason, usage: numbers };
}

async function tool_loop({ prompt, stream }) {
  const executed = [];
  const tools = Object.fromEntries(
    offer(executed, (name, { run, description, parameters }) => [
      name,
      tool({ description, inputSchema: parameters, execute: async (given) => run(given) }),
    ]),
  );
  const { text, steps } = await ask(stream, { prompt, tools, stopWhen: isStepCount(5) });
  const seen = steps.map((step) => ({ text: step.text, calls: step.toolCalls.map((call) => call.toolName) }));
  return { text, steps: seen, executed };
}

async function structured({ prompt, stream }) {
  return { object: (await ask(stream, { prompt, output: Output.object({ schema: CITY }) })).output };
}

async function generate_object({ prompt, stream }) {
  const request = { model, maxRetries: 0, prompt, schema: CITY };
  if (!stream) return { object: (await generateObject(request)).object };
  const result = streamObject(request);
  for await (const part of result.partialObjectStream) void part; // nothing is fetched unless it is read
  return { object: await result.object };
}

async function reasoning({ prompt, stream }) {
  const providerOptions = { openai: { reasoningSummary: "auto" } };
  const { text, reasoning } = await ask(stream, { prompt, providerOptions });
  return { text, reasoning: reasoning.map((part) => part.text) };
}

async function history({ prompts, stream, providerOptions }) {
  const messages = [];
  let text;
  for (const content of prompts) {
    messages.push({ role: "user", content });
    const result = await ask(stream, { instructions: "Be brief.", messages, providerOptions });
    messages.push(...result.responseMessages);
    text = result.text;
  }
  return { text };
}

// While `store` is on, as it is by default, this provider sends an item_reference for a turn that reasoned.
function reasoning_history(parameters) {
  return history({ ...parameters, providerOptions: { openai: { store: false } } });
}

async function concurrent({ prompts, stream }) {
  const results = await Promise.all(prompts.map((prompt) => ask(stream, { prompt })));
  return { texts: results.map((result) => result.text) };
}

async function cancel({ prompt }) {
  const controller = new AbortController();
  const onChunk = ({ chunk }) => chunk.type === "text-delta" && controller.abort();
  const { pieces, aborted } = await ask(true, { prompt, abortSignal: controller.signal, onChunk });
  return { pieces, aborted };
}

async function rate_limit({ prompt, stream }) {
  return { text: (await ask(stream, { prompt })).text };
}

async function broken_stream({ prompt }) {
  const pieces = [];
  const onChunk = ({ chunk }) => chunk.type === "text-delta" && pieces.push(chunk.text);
  try {
    await ask(true, { prompt, onChunk });
  } catch (error) {
    return { pieces, error: error.message };
  }
}

async function retry({ prompt }) {
  return { text: (await ask(false, { prompt, maxRetries: 1 })).text };
}

const cases = {
  plain,
  tool_loop,
  parallel_tools: tool_loop,
  unicode_arguments: tool_loop,
  no_arguments: tool_loop,
  text_and_call: tool_loop,
  structured,
  generate_object,
  reasoning,
  history,
  reasoning_history,
  concurrent,
  cancel,
  rate_limit,
  broken_stream,
  retry,
};
if (kind === "chat") delete cases.reasoning;
await serve(cases);
