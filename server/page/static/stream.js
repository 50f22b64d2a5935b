// Server-sent events by fetch: EventSource cannot send a key.

import { ask } from "./api.js";

const AGAIN_MS = 2000;

// Call `take` with each state, `link` with how the connection is; connects again for ever.
export async function follow(take, link) {
  for (;;) {
    try {
      const response = await ask("page/events");
      link("live", null);
      for await (const event of events(response.body)) take(JSON.parse(event));
      link("lost", null);
    } catch (error) {
      link("lost", error);
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").find((each) => each.startsWith("data: "));
      if (data) yield data.slice(6);
    }
  }
}
