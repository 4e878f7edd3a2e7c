// `ai` with `@ai-sdk/openai-compatible`: the strictest about how a stream ends.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

function languageModel({ baseURL, apiKey, fetch, model }) {
  return createOpenAICompatible({ name: "sluice", baseURL, apiKey, fetch, includeUsage: true })(model);
}

function settings(options) {
  const { maxRetries = 0, ask } = options;
  return { model: languageModel(options), maxRetries, ...ask };
}

export async function generate(options) {
  const { text, finishReason, usage } = await generateText(settings(options));
  return { text, finishReason, usage };
}

export async function stream(options) {
  const errors = [];
  const onError = ({ error }) => errors.push(error.message ?? error.error?.message ?? JSON.stringify(error));
  const streamed = streamText({ ...settings(options), onError });
  let text = "";
  for await (const piece of streamed.textStream) text += piece;
  return { text, errors, finishReason: await ended(streamed.finishReason), usage: await ended(streamed.usage) };
}

// A stream that never began has neither.
async function ended(promise) {
  try {
    return await promise;
  } catch {
    return null;
  }
}

// Aborts after the first piece of text.
export async function abort(options) {
  const controller = new AbortController();
  const streamed = streamText({ ...settings(options), abortSignal: controller.signal, onError: () => {} });
  let text = "";
  for await (const piece of streamed.textStream) {
    text += piece;
    controller.abort();
  }
  return text;
}
