// Calls of functions by a real model, which is guided to them: whole, streamed, and put together by the client.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import OpenAI from 'openai';

const client = new OpenAI({
  baseURL: `${process.env.LONGBATCH_URL}/v1`,
  apiKey: process.env.LONGBATCH_API_KEY || 'none',
  maxRetries: 0,
});
const weather = {
  type: 'function',
  function: {
    name: 'get_weather',
    parameters: {
      type: 'object',
      properties: { city: { type: 'string', maxLength: 20 }, days: { enum: [1, 2] } },
      required: ['city', 'days'],
      additionalProperties: false,
    },
  },
};
const asked = {
  model: process.env.LONGBATCH_MODEL,
  messages: [{ role: 'user', content: 'What is the weather like in Oslo?' }],
  tools: [weather],
  tool_choice: 'required',
  max_tokens: 100,
};
const isRight = (call) => {
  assert.equal(call.function.name, 'get_weather');
  const given = JSON.parse(call.function.arguments);
  assert.ok(given.city.length <= 20 && [1, 2].includes(given.days));
};

test('a required call comes whole', { timeout: 120_000 }, async () => {
  const answer = await client.chat.completions.create(asked);
  const [choice] = answer.choices;
  assert.deepEqual([choice.finish_reason, choice.message.content], ['tool_calls', null]);
  assert.equal(choice.message.tool_calls.length, 1);
  isRight(choice.message.tool_calls[0]);
});

test("the client's helper puts a streamed call together", { timeout: 120_000 }, async () => {
  const runner = client.chat.completions.stream({ ...asked, tool_choice: { type: 'function', function: { name: 'get_weather' } } });
  let pieces = 0;
  runner.on('tool_calls.function.arguments.delta', () => (pieces += 1));
  const final = await runner.finalChatCompletion();
  assert.equal(final.choices[0].finish_reason, 'tool_calls');
  isRight(final.choices[0].message.tool_calls[0]);
  assert.ok(pieces > 3, 'arguments come in pieces');
});

test('the client runs the function, whose result goes back in a conversation', { timeout: 120_000 }, async () => {
  let given = null;
  const run = (city) => {
    given = city;
    return 'It rains.';
  };
  const runner = client.chat.completions.runTools({
    ...asked,
    tool_choice: { type: 'function', function: { name: 'get_weather' } },
    tools: [{ type: 'function', function: { ...weather.function, parse: JSON.parse, function: run } }],
  });
  await runner.done();
  assert.ok(given.city.length <= 20 && [1, 2].includes(given.days));
  const messages = runner.messages;
  assert.equal(messages.at(-1).role, 'tool');
  const next = await client.chat.completions.create({ ...asked, tool_choice: 'none', messages, max_tokens: 8 });
  assert.ok(['stop', 'length'].includes(next.choices[0].finish_reason));
});
