// The functions that every client offers as tools, and executes.

import { z } from "zod";

export const FUNCTIONS = {
  weather: {
    description: "The weather in a city",
    parameters: z.object({ city: z.string() }),
    run: ({ city }) => `sunny in ${city}`,
  },
  add: {
    description: "The sum of two numbers",
    parameters: z.object({ a: z.number(), b: z.number() }),
    run: ({ a, b }) => `${a + b}`,
  },
  note: {
    description: "Gives a text back as it is",
    parameters: z.object({ text: z.string() }),
    run: ({ text }) => text,
  },
  clock: {
    description: "The time; takes nothing",
    parameters: z.object({}),
    run: () => "noon",
  },
};

/** What is asked for as structured output. */
export const CITY = z.object({ name: z.string(), people: z.number(), rivers: z.array(z.string()) });

/** Every function as `wrap(name, function)`, where `function.run` also notes in `executed` that it was run. */
export function offer(executed, wrap) {
  return Object.entries(FUNCTIONS).map(([name, { run, ...rest }]) => {
    const noted = (given) => {
      executed.push([name, given]);
      return run(given);
    };
    return wrap(name, { ...rest, run: noted });
  });
}
