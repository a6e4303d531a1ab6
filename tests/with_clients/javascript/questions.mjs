// What every client is asked, and where the stack is that it asks.

import process from 'node:process';

import { z } from 'zod';

export const { LONGBATCH_URL: URL, LONGBATCH_API_KEY: KEY, LONGBATCH_MODEL: MODEL } = process.env;
export const MAX_TOKENS = 160;
export const CAPITAL = 'Name the capital of France.';
export const DESCRIBE = 'Describe the city of Oslo, the capital of Norway.';
export const WEATHER = 'What is the weather in Oslo?';
export const SUNNY = 'sunny, 21 degrees';

export const City = z.object({
  name: z.string().max(20),
  size: z.enum(['small', 'large']),
  founded: z.number().int().min(0).max(2000),
});
export const Place = z.object({ city: z.string().max(20) });

/** Everything that an asynchronous iterator gives. */
export async function all(iterable) {
  const found = [];
  for await (const each of iterable) found.push(each);
  return found;
}
