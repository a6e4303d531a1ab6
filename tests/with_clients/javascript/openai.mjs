// OpenAI's own client.

import OpenAI from 'openai';
import { zodFunction, zodResponseFormat } from 'openai/helpers/zod';

import { all, CAPITAL, City, DESCRIBE, KEY, MAX_TOKENS, MODEL, Place, SUNNY, URL, WEATHER } from './questions.mjs';

const client = new OpenAI({ baseURL: URL, apiKey: KEY, maxRetries: 0 });

function asked(text, fields = {}) {
  const messages = [{ role: 'user', content: text }];
  return { model: MODEL, messages, max_tokens: MAX_TOKENS, temperature: 0, ...fields };
}

export const calls = {
  async plain() {
    return (await client.chat.completions.create(asked(CAPITAL))).choices[0].message.content;
  },
  async streamed() {
    const stream = await client.chat.completions.create(asked(CAPITAL, { stream: true }));
    return (await all(stream)).map((each) => each.choices[0].delta.content ?? '');
  },
  async structured() {
    const form = { response_format: zodResponseFormat(City, 'city') };
    return (await client.chat.completions.parse(asked(DESCRIBE, form))).choices[0].message.parsed;
  },
  async tools() {
    const tools = [zodFunction({ name: 'weather', description: 'Tell the weather in a city.', parameters: Place })];
    const first = asked(WEATHER, { tools, tool_choice: 'required' });
    const { message } = (await client.chat.completions.create(first)).choices[0];
    const [call] = message.tool_calls;
    const answered = { role: 'tool', tool_call_id: call.id, content: SUNNY };
    const second = { ...asked(WEATHER, { tools, tool_choice: 'none' }), messages: [...first.messages, message, answered] };
    const { content } = (await client.chat.completions.create(second)).choices[0].message;
    return { calls: [{ name: call.function.name, arguments: JSON.parse(call.function.arguments) }], text: content };
  },
  async 'streamed tools'() {
    const tools = [zodFunction({ name: 'weather', description: 'Tell the weather in a city.', parameters: Place })];
    const stream = client.chat.completions.stream(asked(WEATHER, { tools, tool_choice: 'required' }));
    const [call] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
    return { calls: [{ name: call.function.name, arguments: JSON.parse(call.function.arguments) }] };
  },
  async responses() {
    const answer = { model: MODEL, input: CAPITAL, max_output_tokens: MAX_TOKENS, temperature: 0 };
    return (await client.responses.create(answer)).output_text;
  },
};
