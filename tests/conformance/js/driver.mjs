// Calls the JavaScript clients for the Python tests: one JSON line on standard input for each call, one
// on standard output for each answer, in any order. It only calls and reports; the tests judge.
import { createInterface } from "node:readline";
import * as ai from "./ai_client.mjs";
import * as openai from "./openai_client.mjs";

const CLIENTS = { ai, openai };

async function answer(line) {
  const { id, client, call, options } = JSON.parse(line);
  let attempts = 0;
  const counted = (...request) => {
    attempts += 1;
    return fetch(...request);
  };
  const reply = { id };
  try {
    reply.result = await CLIENTS[client][call]({ ...options, fetch: counted });
  } catch (error) {
    reply.error = described(error);
  }
  reply.attempts = attempts;
  process.stdout.write(JSON.stringify(reply) + "\n");
}

function described(error) {
  const { name, message, status, code, type, param, statusCode, responseBody } = error;
  const request_id = error.requestID;
  const cause = error.lastError ? described(error.lastError) : undefined;
  return { name, class: error.constructor.name, message, status, code, type, param, request_id, statusCode, responseBody, cause };
}

createInterface({ input: process.stdin }).on("line", answer);
