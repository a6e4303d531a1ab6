// LangChain's ChatOpenAI.

import { HumanMessage, ToolMessage } from '@langchain/core/messages';
import { tool } from '@langchain/core/tools';
import { ChatOpenAI } from '@langchain/openai';

import { all, CAPITAL, City, DESCRIBE, KEY, MAX_TOKENS, MODEL, Place, SUNNY, URL, WEATHER } from './questions.mjs';

const options = {
  model: MODEL,
  apiKey: KEY,
  configuration: { baseURL: URL },
  temperature: 0,
  maxTokens: MAX_TOKENS,
  maxRetries: 0,
};
const chat = new ChatOpenAI(options);

export const calls = {
  async plain() {
    return (await chat.invoke(CAPITAL)).text;
  },
  async streamed() {
    return (await all(await chat.stream(CAPITAL))).map((each) => each.text);
  },
  async structured() {
    return chat.withStructuredOutput(City, { method: 'jsonSchema', name: 'city' }).invoke(DESCRIBE);
  },
  async tools() {
    const description = 'Tell the weather in a city.';
    const weather = tool(() => SUNNY, { name: 'weather', description, schema: Place });
    const question = new HumanMessage(WEATHER);
    const message = await chat.bindTools([weather], { tool_choice: 'required' }).invoke([question]);
    const [call] = message.tool_calls;
    const answered = new ToolMessage({ content: SUNNY, tool_call_id: call.id });
    const last = await chat.bindTools([weather]).invoke([question, message, answered]);
    return { calls: [{ name: call.name, arguments: call.args }], text: last.text };
  },
  async responses() {
    return (await new ChatOpenAI({ ...options, useResponsesApi: true }).invoke(CAPITAL)).text;
  },
};
