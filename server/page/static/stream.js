// Server-sent events by fetch: EventSource cannot send a key.

import { ask } from "./api.js";

const AGAIN_MS = 2000;

// Call `begin` with what the server sends first, `take` with each state, `link` with how the connection is; connects again for ever.
export async function follow(begin, take, link) {
  for (;;) {
    try {
      const response = await ask("page/events");
      link("live", null);
      for await (const { kind, said } of told(response)) (kind === "start" ? begin : take)(said);
      link("lost", null);
    } catch (error) {
      link("lost", error);
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}

// The events of a response: of which kind, and what is said. Whoever stops listening closes the connection.
export async function* told(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (text + value).split("\n\n");
      text = parts.pop();
      for (const part of parts) {
        const field = (name) => part.split("\n").find((each) => each.startsWith(`${name}: `))?.slice(name.length + 2);
        if (field("data")) yield { kind: field("event"), said: JSON.parse(field("data")) };
      }
    }
  } finally {
    await reader.cancel();
  }
}
