// The official `openai` client. Every function takes {baseURL, apiKey, fetch, maxRetries, body, …}.
import OpenAI from "openai";

function client({ baseURL, apiKey, fetch, maxRetries = 0 }) {
  return new OpenAI({ baseURL, apiKey, fetch, maxRetries, timeout: 20_000 });
}

async function collected(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

export async function models(options) {
  const listed = await client(options).models.list();
  return listed.data.map((model) => model.id);
}

export async function chat(options) {
  const { data, request_id } = await client(options).chat.completions.create(options.body).withResponse();
  return { answer: data, request_id };
}

export async function chatStream(options) {
  return collected(await client(options).chat.completions.create({ ...options.body, stream: true }));
}

export async function completion(options) {
  return client(options).completions.create(options.body);
}

export async function completionStream(options) {
  return collected(await client(options).completions.create({ ...options.body, stream: true }));
}

// Aborts after the first piece of text; resolves once the iteration has ended.
export async function chatAbort(options) {
  const stream = await client(options).chat.completions.create({ ...options.body, stream: true });
  let text = "";
  for await (const event of stream) {
    text += event.choices[0]?.delta?.content ?? "";
    if (text) stream.controller.abort();
  }
  return text;
}

export async function response(options) {
  const answer = await client(options).responses.create(options.body);
  return { answer, output_text: answer.output_text };
}

export async function responseStream(options) {
  return collected(await client(options).responses.create({ ...options.body, stream: true }));
}
