// The side of tests/clients/program.py that every program here shares: one JSON object per line in, one out.

import { createInterface } from "node:readline";

// Standard output belongs to the replies: what a library has to say goes to standard error.
console.log = console.info = console.debug = console.error;

/** Answer lines until standard input ends. `cases` maps a name to a function of the line's other members. */
export async function serve(cases) {
  const known = { ...cases, cases: async () => ({ cases: Object.keys(cases) }) };
  for await (const line of createInterface({ input: process.stdin })) {
    const { case: name, ...parameters } = JSON.parse(line);
    const reply = await answer(known[name], name, parameters);
    process.stdout.write(JSON.stringify(reply) + "\n");
  }
}

async function answer(run, name, parameters) {
  try {
    if (!run) throw new Error(`this client has no case ${name}`);
    return { ok: await run(parameters) };
  } catch (error) {
    console.error(error);
    return { error: describe(error) };
  }
}

// The AI SDK names its errors and says `statusCode`; openai's and anthropic's have classes and say `status`.
function describe(error) {
  return {
    type: error.name === "Error" ? error.constructor.name : error.name,
    message: error.message,
    status: error.status ?? error.statusCode ?? null,
    code: error.code ?? error.data?.error?.code ?? error.error?.error?.code ?? null,
  };
}
