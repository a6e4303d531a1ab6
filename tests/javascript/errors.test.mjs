// Errors: the client's own classes, with status, code and the parameter that is wrong.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import OpenAI from 'openai';

import { CHAT, MODEL, client, clientWith, upload } from './support.mjs';

const CHAT_FIELDS = { model: MODEL, messages: [{ role: 'user', content: 'Hello' }], max_tokens: 8 };

/** The error that the call ends with, which has this class. */
async function refused(promise, kind) {
  const error = await promise.then(() => assert.fail('was not refused'), (caught) => caught);
  assert.ok(error instanceof kind, `${error}`);
  assert.match(error.requestID, /^req_/);
  assert.ok(error.message.startsWith(`${error.status} `));
  return error;
}

test('a wrong field of a chat is named', async () => {
  const wrong = {
    n: 17,
    temperature: 3,
    max_tokens: 0,
    tools: 'f',
    wisdom: 1,
  };
  for (const [name, value] of Object.entries(wrong)) {
    const call = client.chat.completions.create({ ...CHAT_FIELDS, [name]: value });
    const error = await refused(call, OpenAI.BadRequestError);
    assert.deepEqual([error.status, error.param, error.type], [400, name, 'invalid_request_error']);
    assert.ok(error.code);
  }
});

test('what can never fit and what nobody serves have the codes that clients look for', async () => {
  const long = client.chat.completions.create({ ...CHAT_FIELDS, max_tokens: 131_072, stream: true });
  const tooLong = await refused(long, OpenAI.BadRequestError);
  assert.deepEqual([tooLong.code, tooLong.param], ['context_length_exceeded', 'messages']);
  const unknown = await refused(
    client.chat.completions.create({ ...CHAT_FIELDS, model: 'gpt-9' }),
    OpenAI.NotFoundError,
  );
  assert.deepEqual([unknown.status, unknown.code, unknown.param], [404, 'model_not_found', 'model']);
});

test('a wrong batch names its field', async () => {
  const file = await upload('{}\n');
  const good = { input_file_id: file.id, endpoint: CHAT, completion_window: '24h' };
  const wrong = {
    input_file_id: 'file-none',
    endpoint: '/v1/moderations',
    completion_window: '3h',
    metadata: { team: 7 },
  };
  for (const [name, value] of Object.entries(wrong)) {
    const error = await refused(client.batches.create({ ...good, [name]: value }), OpenAI.BadRequestError);
    assert.deepEqual([error.status, error.param], [400, name]);
  }
});

test('a wrong file names its field', async () => {
  const notLines = await refused(upload('{}', 'in.csv'), OpenAI.BadRequestError);
  assert.equal(notLines.param, 'file');
  assert.match(notLines.message, /Invalid file format for Batch API. Must be .jsonl/);
  const page = client.files.list({ limit: 0 });
  assert.equal((await refused(page, OpenAI.BadRequestError)).param, 'limit');
});

test('what does not exist is not found', async () => {
  const absent = '019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f';
  for (const call of [
    () => client.files.retrieve(`file-${absent}`),
    () => client.files.content(`file-${absent}`),
    () => client.batches.retrieve(`batch_${absent}`),
    () => client.batches.cancel(`batch_${absent}`),
    () => client.models.retrieve('gpt-9'),
  ]) {
    assert.equal((await refused(call(), OpenAI.NotFoundError)).status, 404);
  }
});

test('a wrong key is refused', async () => {
  const stranger = clientWith('lb_nobody');
  for (const call of [() => stranger.files.list(), () => stranger.chat.completions.create(CHAT_FIELDS)]) {
    const error = await refused(call(), OpenAI.AuthenticationError);
    assert.deepEqual([error.status, error.code], [401, 'invalid_api_key']);
  }
});
