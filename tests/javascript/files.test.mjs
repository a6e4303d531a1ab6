// Files: upload, look, wait, list page by page, read, delete.

import assert from 'node:assert/strict';
import { createReadStream } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';

import OpenAI from 'openai';

import { all, chatLine, client, jsonl, upload } from './support.mjs';

test('a file is stored, described, read and deleted', async () => {
  const text = jsonl([chatLine('a', 'Ist der Himmel blau? Natürlich.')]);
  const file = await upload(text, 'näme.jsonl');
  assert.deepEqual(
    [file.object, file.purpose, file.status, file.bytes, file.filename],
    ['file', 'batch', 'processed', Buffer.byteLength(text), 'näme.jsonl'],
  );
  assert.deepEqual(await client.files.waitForProcessing(file.id, { pollInterval: 50 }), file);
  assert.deepEqual(await client.files.retrieve(file.id), file);
  assert.equal(await (await client.files.content(file.id)).text(), text);
  assert.deepEqual(await client.files.delete(file.id), { id: file.id, object: 'file', deleted: true });
  for (const verb of ['retrieve', 'content', 'delete']) {
    await assert.rejects(client.files[verb](file.id), (error) => {
      assert.ok(error instanceof OpenAI.NotFoundError);
      return error.status === 404 && error.code === 'not_found';
    });
  }
});

test('a file on disk is sent as a stream, with a life of its own', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'longbatch-'));
  try {
    const lines = Array.from({ length: 4000 }, (_, number) => chatLine(`line-${number}`, 'x'.repeat(700)));
    await writeFile(join(folder, 'big.jsonl'), jsonl(lines));
    const file = await client.files.create({
      file: createReadStream(join(folder, 'big.jsonl')),
      purpose: 'batch',
      expires_after: { anchor: 'created_at', seconds: 3600 },
    });
    assert.equal(file.filename, 'big.jsonl');
    assert.equal(file.expires_at, file.created_at + 3600);
    assert.equal(await (await client.files.content(file.id)).text(), jsonl(lines));
  } finally {
    await rm(folder, { recursive: true });
  }
});

test("every file is listed once by the client's own pagination, in both orders", async () => {
  const made = [];
  for (let number = 0; number < 23; number += 1) made.push((await upload('{}\n', `${number}.jsonl`)).id);
  const newest = (await all(client.files.list({ limit: 5 }))).map((file) => file.id);
  assert.equal(new Set(newest).size, newest.length);
  assert.deepEqual(newest.slice(0, 23), made.toReversed());
  const oldest = (await all(client.files.list({ limit: 5, order: 'asc' }))).map((file) => file.id);
  assert.deepEqual(oldest, newest.toReversed());
  const page = await client.files.list({ limit: 5, after: made[10] });
  assert.deepEqual(page.data.map((file) => file.id), made.slice(5, 10).toReversed());
  assert.ok(page.hasNextPage());
});
