// Batches: create, poll, read, list page by page, cancel, retry.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import OpenAI from 'openai';

import {
  CHAT,
  MODEL,
  all,
  chatLine,
  client,
  ended,
  eventually,
  jsonl,
  results,
  run,
  upload,
} from './support.mjs';

test('a batch runs from upload to output and errors', { timeout: 90_000 }, async () => {
  const lines = [chatLine('a'), chatLine('b', 'And the sea?'), chatLine('hot', 'Hello', { temperature: 3 })];
  const file = await upload(jsonl(lines));
  const batch = await client.batches.create({
    input_file_id: file.id,
    endpoint: CHAT,
    completion_window: '24h',
    metadata: { team: 'sky' },
    output_expires_after: { anchor: 'created_at', seconds: 7200 },
  });
  assert.deepEqual([batch.object, batch.status, batch.metadata], ['batch', 'validating', { team: 'sky' }]);
  const last = await ended(batch.id);
  assert.equal(last.status, 'completed');
  assert.deepEqual(last.request_counts, { total: 3, completed: 2, failed: 1 });
  assert.ok(last.created_at <= last.in_progress_at && last.in_progress_at <= last.completed_at);
  const output = await results(last.output_file_id);
  assert.deepEqual([...output.keys()].sort(), ['a', 'b']);
  let tokens = 0;
  for (const { response, error } of output.values()) {
    assert.deepEqual([error, response.status_code, response.body.model], [null, 200, MODEL]);
    assert.ok(response.body.choices[0].message.content);
    tokens += response.body.usage.total_tokens;
  }
  assert.equal(last.usage.total_tokens, tokens);
  const { response } = (await results(last.error_file_id)).get('hot');
  assert.equal(response.status_code, 400);
  assert.deepEqual([response.body.error.param, response.body.error.code], ['temperature', 'invalid_value']);
});

test('bad content fails the batch with the line that is wrong', { timeout: 60_000 }, async () => {
  const file = await upload(`${jsonl([chatLine('a')])}{nonsense\n`);
  const { id } = await client.batches.create({
    input_file_id: file.id,
    endpoint: CHAT,
    completion_window: '24h',
  });
  const last = await ended(id);
  assert.equal(last.status, 'failed');
  assert.deepEqual(last.errors.data, [
    {
      code: 'invalid_json_line',
      line: 2,
      message: 'This line is not parseable as valid JSON.',
      param: null,
    },
  ]);
});

test("every batch is listed once by the client's own pagination", { timeout: 90_000 }, async () => {
  const made = [];
  for (let number = 0; number < 9; number += 1) made.push((await run([chatLine('only')])).id);
  const listed = (await all(client.batches.list({ limit: 4 }))).map((batch) => batch.id);
  assert.equal(new Set(listed).size, listed.length);
  assert.deepEqual(listed.slice(0, 9), made.toReversed());
  for (const id of made) assert.equal((await ended(id)).status, 'completed');
});

test('cancelling keeps what was completed, and the rest can be run again', { timeout: 120_000 }, async () => {
  const numbers = Array.from({ length: 21 }, (_, number) => number);
  const batch = await run(
    numbers.map((each) => chatLine(`${each}`, `Talk. [[tokens=2000]] ${each}`, { max_tokens: 2000 })),
  );
  const running = await eventually(async () => {
    const now = await client.batches.retrieve(batch.id);
    return now.output_file_id && now;
  });
  const early = await client.files.content(running.output_file_id);
  assert.equal(early.headers.get('x-incomplete'), 'true');
  const cancelling = await client.batches.cancel(batch.id);
  assert.ok(['cancelling', 'cancelled'].includes(cancelling.status));
  const last = await ended(batch.id);
  assert.equal(last.status, 'cancelled');
  const output = await results(last.output_file_id);
  const errors = await results(last.error_file_id);
  assert.ok(output.size >= 1);
  assert.equal(output.size + errors.size, 21);
  for (const { response, error } of errors.values()) {
    assert.deepEqual([response, error.code], [null, 'batch_cancelled']);
  }
  const again = await client.post(`/batches/${batch.id}/retry`);
  assert.deepEqual([again.status, again.retry_of], ['validating', batch.id]);
  await client.batches.cancel(again.id);
  assert.equal((await ended(again.id)).status, 'cancelled');
});

test('a batch that has ended is not cancelled, nor asked twice', { timeout: 60_000 }, async () => {
  const patient = client.withOptions({ maxRetries: 2 });
  const { id } = await run([chatLine('only')]);
  await ended(id);
  await assert.rejects(patient.batches.cancel(id), (error) => {
    assert.ok(error instanceof OpenAI.ConflictError);
    assert.equal(error.headers.get('x-should-retry'), 'false');
    return error.status === 409 && error.code === 'conflict';
  });
});
