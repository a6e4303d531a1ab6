// What the scripts share: a client of the running stack, lines of batches, batches that have ended.

import { setTimeout as pause } from 'node:timers/promises';

import OpenAI, { toFile } from 'openai';

const { LONGBATCH_URL, LONGBATCH_API_KEY, LONGBATCH_ENGINE_METRICS } = process.env;

export const MODEL = 'llama-3.1-8b-instruct';
export const CHAT = '/v1/chat/completions';
export const client = clientWith(LONGBATCH_API_KEY);
const ENDED = new Set(['completed', 'failed', 'expired', 'cancelled']);
const POLL_MS = 100;

/** A client with this key that repeats nothing by itself. */
export function clientWith(apiKey) {
  return new OpenAI({ baseURL: `${LONGBATCH_URL}/v1`, apiKey, maxRetries: 0 });
}

/** A line that asks one question. */
export function chatLine(customId, text = 'Why is the sky blue?', fields = {}) {
  const body = { model: MODEL, messages: [{ role: 'user', content: text }], max_tokens: 8, ...fields };
  return { custom_id: customId, method: 'POST', url: CHAT, body };
}

/** The lines as a file's text. */
export function jsonl(lines) {
  return lines.map((line) => `${JSON.stringify(line)}\n`).join('');
}

/** A stored file with this text. */
export async function upload(text, name = 'in.jsonl') {
  return client.files.create({ file: await toFile(Buffer.from(text), name), purpose: 'batch' });
}

/** A new batch of these lines. */
export async function run(lines) {
  const file = await upload(jsonl(lines));
  return client.batches.create({ input_file_id: file.id, endpoint: CHAT, completion_window: '24h' });
}

/** What `look` finds, once that is true. */
export async function eventually(look, seconds = 60) {
  const deadline = Date.now() + seconds * 1000;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (Date.now() > deadline) throw new Error(`not within ${seconds} s: ${look}`);
    await pause(POLL_MS);
  }
}

/** The batch once it has ended. */
export async function ended(id) {
  return eventually(async () => {
    const batch = await client.batches.retrieve(id);
    return ENDED.has(batch.status) && batch;
  }, 90);
}

/** The lines of a result file by their custom id. */
export async function results(fileId) {
  const text = await (await client.files.content(fileId)).text();
  const lines = text.trimEnd().split('\n').map((line) => JSON.parse(line));
  return new Map(lines.map((line) => [line.custom_id, line]));
}

/** Everything that an asynchronous iterator gives. */
export async function all(iterable) {
  const found = [];
  for await (const each of iterable) found.push(each);
  return found;
}

/** The engine's active requests and used blocks of its cache. */
export async function engineUse() {
  const text = await (await fetch(LONGBATCH_ENGINE_METRICS)).text();
  const value = (pattern) => Number(text.match(pattern)[1]);
  return {
    active: value(/^nv_trt_llm_request_metrics\{[^}]*="active"[^}]*\} (\S+)$/m),
    used: value(/^nv_trt_llm_kv_cache_block_metrics\{[^}]*="used"[^}]*\} (\S+)$/m),
  };
}
