// Responses: whole, streamed, in the background, cancelled, deleted, and told of by a webhook.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { test } from 'node:test';

import OpenAI from 'openai';

import { MODEL, all, client, eventually } from './support.mjs';

const asked = (text, fields = {}) => ({ model: MODEL, input: text, max_output_tokens: 100, ...fields });
const long = (fields) => asked('Talk. [[tokens=100000]]', { max_output_tokens: 100_000, ...fields });
const hasEnded = (response) => !['queued', 'in_progress'].includes(response.status);

/** The response once it has ended. */
const ended = (id) =>
  eventually(async () => {
    const response = await client.responses.retrieve(id);
    return hasEnded(response) && response;
  });

/** The text that a stream's events carry. */
const textOf = (events) =>
  events
    .filter((event) => event.type === 'response.output_text.delta')
    .map((event) => event.delta)
    .join('');

test('a response is answered, kept, listed and deleted', { timeout: 60_000 }, async () => {
  const answer = await client.responses.create(asked('Why? [[tokens=12]]', { instructions: 'Be brief.' }));
  assert.deepEqual([answer.status, answer.usage.output_tokens], ['completed', 12]);
  assert.ok(answer.output_text);
  assert.deepEqual(await client.responses.retrieve(answer.id), answer);
  const items = await all(client.responses.inputItems.list(answer.id));
  assert.deepEqual(items.map((item) => item.content[0].text), ['Why? [[tokens=12]]']);
  await client.responses.delete(answer.id);
  await assert.rejects(client.responses.retrieve(answer.id), OpenAI.NotFoundError);
});

test('a stream ends with the response that is kept', { timeout: 60_000 }, async () => {
  const events = await all(await client.responses.create(asked('Talk. [[tokens=30]]', { stream: true })));
  assert.equal(events[0].type, 'response.created');
  const last = events.at(-1);
  assert.equal(last.type, 'response.completed');
  const kept = await client.responses.retrieve(last.response.id);
  assert.equal(textOf(events), kept.output_text);
});

test("the client's own helper puts a stream together", { timeout: 60_000 }, async () => {
  const stream = client.responses.stream(asked('Talk. [[tokens=30]]'));
  const final = await stream.finalResponse();
  assert.deepEqual([final.status, final.usage.output_tokens], ['completed', 30]);
});

test('a response in the background is polled, and followed from where a reader left', { timeout: 90_000 }, async () => {
  const made = await client.responses.create(
    asked('Talk. [[tokens=80]]', { background: true, service_tier: 'flex' }),
  );
  assert.deepEqual([made.status, made.service_tier], ['queued', 'flex']);
  const kept = await ended(made.id);
  assert.equal(kept.status, 'completed');
  const whole = await all(await client.responses.retrieve(made.id, { stream: true }));
  const middle = whole.find((event) => event.type === 'response.output_text.delta');
  const rest = await all(
    await client.responses.retrieve(made.id, { stream: true, starting_after: middle.sequence_number }),
  );
  assert.equal(middle.delta + textOf(rest), kept.output_text);
});

test('a running response is cancelled', { timeout: 60_000 }, async () => {
  const made = await client.responses.create(long({ background: true }));
  await eventually(async () => (await client.responses.retrieve(made.id)).status === 'in_progress');
  assert.equal((await client.responses.cancel(made.id)).status, 'cancelled');
  assert.equal((await client.responses.retrieve(made.id)).status, 'cancelled');
});

test('the client unwraps the event of an end', { timeout: 60_000 }, async (t) => {
  const seen = [];
  const server = createServer(async (request, response) => {
    const body = (await request.setEncoding('utf8').toArray()).join('');
    seen.push({ body, headers: request.headers });
    response.writeHead(204).end();
  }).listen(0, '127.0.0.1');
  t.after(() => server.close());
  await once(server, 'listening');
  const secret = `whsec_${Buffer.from('a secret of thirty-two bytes ...').toString('base64')}`;
  const made = await client.responses.create(
    asked('Why? [[tokens=5]]', {
      background: true,
      webhook_url: `http://127.0.0.1:${server.address().port}/ended`,
      webhook_secret: secret,
    }),
  );
  await eventually(() => seen.length);
  const event = await client.webhooks.unwrap(seen[0].body, seen[0].headers, secret);
  assert.deepEqual([event.type, event.data], ['response.completed', { id: made.id }]);
  await assert.rejects(client.webhooks.unwrap(`${seen[0].body} `, seen[0].headers, secret));
});
