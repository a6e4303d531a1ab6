// Chat and text completions: whole, streamed, and given up.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import OpenAI from 'openai';

import { MODEL, all, client, engineUse, eventually } from './support.mjs';

const asked = (text) => ({ model: MODEL, messages: [{ role: 'user', content: text }], max_tokens: 100, seed: 7 });

/** Nothing that we asked is left in the engine. */
const engineIsIdle = () =>
  eventually(async () => {
    const { active, used } = await engineUse();
    return active === 0 && used === 0;
  }, 15);

test('a chat says the same whole and streamed, with its usage', { timeout: 60_000 }, async () => {
  const whole = await client.chat.completions.create(asked('How are you? [[tokens=60]]'));
  assert.deepEqual([whole.object, whole.choices[0].finish_reason], ['chat.completion', 'stop']);
  assert.equal(whole.usage.completion_tokens, 60);
  const stream = await client.chat.completions.create({
    ...asked('How are you? [[tokens=60]]'),
    stream: true,
    stream_options: { include_usage: true },
  });
  const chunks = await all(stream);
  const said = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('');
  assert.equal(said, whole.choices[0].message.content);
  assert.ok(chunks.length > 5);
  assert.deepEqual(chunks.at(-2).choices[0].finish_reason, 'stop');
  assert.deepEqual([chunks.at(-1).choices, chunks.at(-1).usage], [[], whole.usage]);
});

test("the client's own helper puts a stream together", { timeout: 60_000 }, async () => {
  const runner = client.chat.completions.stream({
    ...asked('Talk. [[tokens=30]]'),
    stream_options: { include_usage: true },
  });
  const final = await runner.finalChatCompletion();
  assert.equal(final.choices[0].message.role, 'assistant');
  assert.equal(final.choices[0].finish_reason, 'stop');
  assert.equal((await runner.totalUsage()).completion_tokens, 30);
});

test('a text is completed and cut at max_tokens', { timeout: 60_000 }, async () => {
  const text = { model: MODEL, prompt: 'Once upon [[tokens=60]]', max_tokens: 20, seed: 7 };
  const whole = await client.completions.create(text);
  assert.deepEqual([whole.choices[0].finish_reason, whole.usage.completion_tokens], ['length', 20]);
  const pieces = await all(await client.completions.create({ ...text, stream: true }));
  assert.equal(pieces.map((piece) => piece.choices[0].text).join(''), whole.choices[0].text);
});

test('aborting a stream frees the engine', { timeout: 60_000 }, async () => {
  const controller = new AbortController();
  const stream = await client.chat.completions.create(
    { ...asked('Talk. [[tokens=20000]]'), max_tokens: 20_000, stream: true },
    { signal: controller.signal },
  );
  for await (const chunk of stream) {
    if (!chunk.choices[0]?.delta.content) continue;
    await eventually(async () => (await engineUse()).active === 1);
    controller.abort();
    break;
  }
  await engineIsIdle();
});

test('leaving the loop over a stream frees the engine', { timeout: 60_000 }, async () => {
  const stream = await client.chat.completions.create({
    ...asked('Talk. [[tokens=20000]]'),
    max_tokens: 20_000,
    stream: true,
  });
  for await (const chunk of stream) if (chunk.choices[0]?.delta.content) break;
  await engineIsIdle();
});

test('aborting a request that is not streamed frees the engine', { timeout: 60_000 }, async () => {
  const controller = new AbortController();
  const answer = client.chat.completions.create(
    { ...asked('Talk. [[tokens=20000]]'), max_tokens: 20_000 },
    { signal: controller.signal },
  );
  const refused = assert.rejects(answer, OpenAI.APIUserAbortError);
  await eventually(async () => (await engineUse()).active === 1);
  controller.abort();
  await refused;
  await engineIsIdle();
});
