// Checks the AI SDK's conversations on standard input against its own schema and the prompt that it makes of them.
import { modelMessageSchema } from "ai";
import { convertToLanguageModelPrompt } from "ai/internal";
import { createInterface } from "node:readline";

let seen = 0;
for await (const line of createInterface({ input: process.stdin })) {
  const { provider, messages } = JSON.parse(line);
  if (provider !== "vercel") continue;
  const parsed = messages.map((message) => modelMessageSchema.parse(message));
  await convertToLanguageModelPrompt({ prompt: { messages: parsed }, supportedUrls: {} });
  seen += 1;
}
if (seen === 0) throw new Error("There were no conversations on standard input.");
console.log(`${seen.toLocaleString("en")} conversations of vercel fit the AI SDK's schema and make a prompt`);
