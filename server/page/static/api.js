// Requests to the server: with the key where one is given, with its words where it refuses.

let key = sessionStorage.getItem("key") ?? "";

export function useKey(text) {
  key = text;
  if (text) sessionStorage.setItem("key", text);
  else sessionStorage.removeItem("key");
}

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// What a shell has to add to a command where the server wants a key.
export const keyOption = () => (key ? ` -H "Authorization: Bearer $KEY"` : "");

export async function ask(path, { method = "GET", body, json, signal } = {}) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  if (json !== undefined) {
    headers["Content-Type"] = "application/json";
    body = JSON.stringify(json);
  }
  const response = await fetch(path, { method, body, headers, signal });
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  throw new Refused(response.status, said.error ?? `${response.status} ${response.statusText}`);
}

export const answer = async (path, options) => (await ask(path, options)).json();

export const model = (name, rest = "") => `v2/models/${encodeURIComponent(name)}${rest}`;

export const look = (name, what) => `page/models/${encodeURIComponent(name)}/${what}`;

export const change = (name, what) => `v2/repository/models/${encodeURIComponent(name)}/${what}`;
