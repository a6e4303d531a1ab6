// Vercel's `ai` with its provider for compatible servers.

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateObject, generateText, stepCountIs, streamText, tool } from 'ai';

import { all, CAPITAL, City, DESCRIBE, KEY, MAX_TOKENS, MODEL, Place, SUNNY, URL, WEATHER } from './questions.mjs';

const provider = createOpenAICompatible({
  name: 'longbatch',
  baseURL: URL,
  apiKey: KEY,
  supportsStructuredOutputs: true,
});
const asked = { model: provider(MODEL), temperature: 0, maxOutputTokens: MAX_TOKENS, maxRetries: 0 };

export const calls = {
  async plain() {
    return (await generateText({ ...asked, prompt: CAPITAL })).text;
  },
  async streamed() {
    return all(streamText({ ...asked, prompt: CAPITAL }).textStream);
  },
  async structured() {
    return (await generateObject({ ...asked, schema: City, prompt: DESCRIBE })).object;
  },
  async tools() {
    const made = [];
    const execute = (given) => {
      made.push({ name: 'weather', arguments: given });
      return SUNNY;
    };
    const weather = tool({ description: 'Tell the weather in a city.', inputSchema: Place, execute });
    const { text } = await generateText({
      ...asked,
      prompt: WEATHER,
      tools: { weather },
      stopWhen: stepCountIs(2),
      prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? 'required' : 'none' }),
    });
    return { calls: made, text };
  },
};
