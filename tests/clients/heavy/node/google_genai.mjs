// The @google/genai package on /v1beta/models/….

import { GoogleGenAI } from "@google/genai";
import { z } from "zod";
import { CITY, offer } from "./functions.mjs";
import { serve } from "./program.mjs";

const model = process.env.BRIDGE_MODEL;
const BASE = { baseUrl: process.env.OPENAI_BASE_URL.replace(/\/v1$/, "") };
const RETRYING = { ...BASE, retryOptions: { attempts: 2, initialDelay: 0.1 } };
const apiKey = process.env.OPENAI_API_KEY;
const client = new GoogleGenAI({ apiKey, httpOptions: { ...BASE, retryOptions: { attempts: 1 } } });
const THINKING = { thinkingConfig: { includeThoughts: true } };

const user = (text) => ({ role: "user", parts: [{ text }] });
const said = (parts) => parts.map((part) => (part.thought ? "" : (part.text ?? ""))).join("");
const partsOf = (chunk) => chunk.candidates?.[0]?.content?.parts ?? [];

/** The parts of an answer, of all its chunks when streamed. */
async function ask(stream, contents, config = {}) {
  const request = { model, contents, config };
  if (!stream) return partsOf(await client.models.generateContent(request));
  const parts = [];
  for await (const chunk of await client.models.generateContentStream(request)) parts.push(...partsOf(chunk));
  return parts;
}

function count(usage) {
  const { promptTokenCount, cachedContentTokenCount, candidatesTokenCount, thoughtsTokenCount } = usage;
  return [promptTokenCount, cachedContentTokenCount, candidatesTokenCount + thoughtsTokenCount, thoughtsTokenCount];
}

async function plain({ prompt, stream }) {
  const request = { model, contents: prompt };
  if (!stream) {
    const answer = await client.models.generateContent(request);
    return { text: answer.text, end: answer.candidates[0].finishReason, usage: count(answer.usageMetadata) };
  }
  const pieces = [];
  let last;
  for await (const chunk of await client.models.generateContentStream(request)) {
    if (chunk.text) pieces.push(chunk.text);
    last = chunk;
  }
  return { text: pieces.join(""), pieces, end: last.candidates[0].finishReason, usage: count(last.usageMetadata) };
}

async function tool_loop({ prompt, stream }) {
  const executed = [];
  const functions = new Map();
  const functionDeclarations = offer(executed, (name, { run, parameters, description }) => {
    functions.set(name, run);
    return { name, description, parametersJsonSchema: z.toJSONSchema(parameters) };
  });
  const contents = [user(prompt)];
  const steps = [];
  for (;;) {
    const parts = await ask(stream, contents, { tools: [{ functionDeclarations }] });
    const calls = parts.flatMap((part) => (part.functionCall ? [part.functionCall] : []));
    const text = said(parts);
    steps.push({ text, calls: calls.map((call) => call.name) });
    if (!calls.length) return { text, steps, executed };
    const answers = calls.map(({ id, name, args }) => ({
      functionResponse: { id, name, response: { output: functions.get(name)(args) } },
    }));
    contents.push({ role: "model", parts }, { role: "user", parts: answers });
  }
}

async function structured({ prompt, stream }) {
  const config = { responseMimeType: "application/json", responseJsonSchema: z.toJSONSchema(CITY) };
  return { object: CITY.parse(JSON.parse(said(await ask(stream, prompt, config)))) };
}

async function reasoning({ prompt, stream }) {
  const parts = await ask(stream, prompt, THINKING);
  const thoughts = parts.filter((part) => part.thought).map((part) => part.text);
  return { text: said(parts), reasoning: [thoughts.join("")] };
}

async function history({ prompts, stream }) {
  const chat = client.chats.create({ model, config: { systemInstruction: "Be brief.", ...THINKING } });
  let text;
  for (const message of prompts) {
    text = "";
    if (!stream) text = (await chat.sendMessage({ message })).text;
    else for await (const chunk of await chat.sendMessageStream({ message })) text += chunk.text ?? "";
  }
  return { text };
}

async function concurrent({ prompts, stream }) {
  return { texts: (await Promise.all(prompts.map((prompt) => ask(stream, prompt)))).map(said) };
}

async function cancel({ prompt }) {
  const controller = new AbortController();
  const pieces = [];
  const request = { model, contents: prompt, config: { abortSignal: controller.signal } };
  try {
    for await (const chunk of await client.models.generateContentStream(request)) {
      if (!chunk.text) continue;
      pieces.push(chunk.text);
      controller.abort();
    }
  } catch (error) {
    if (!controller.signal.aborted) throw error;
  }
  return { pieces };
}

// The client's errors have the status, and the body as their text.
async function rate_limit({ prompt, stream }) {
  try {
    return { text: said(await ask(stream, prompt)) };
  } catch (error) {
    error.code = JSON.parse(error.message).error.details[0].reason;
    throw error;
  }
}

async function broken_stream({ prompt }) {
  const pieces = [];
  try {
    for await (const chunk of await client.models.generateContentStream({ model, contents: prompt })) {
      if (chunk.text) pieces.push(chunk.text);
    }
  } catch (error) {
    return { pieces, error: error.message };
  }
}

async function retry({ prompt }) {
  const patient = new GoogleGenAI({ apiKey, httpOptions: RETRYING });
  return { text: (await patient.models.generateContent({ model, contents: prompt })).text };
}

async function models() {
  const listed = [];
  const short = (name) => name.replace(/^models\//, "");
  for await (const { name } of await client.models.list({ config: { pageSize: 5 } })) listed.push(short(name));
  return { models: listed, retrieved: short((await client.models.get({ model })).name) };
}

await serve({
  plain,
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
  models,
});
