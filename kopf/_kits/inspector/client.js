// Requests with the token, and the stream of changes.

const KEY = 'token';
const SILENCE = 5000; // the operator is described once a second; without that for so long, it is gone
const PAUSES = [500, 1000, 2000, 3000];

/** Take the token from the link or from the session of this tab; remove it from the address. */
export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get('token');
  if (given !== null) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, '', location.pathname);
  }
  return sessionStorage.getItem(KEY);
}

/** Keep the token that was typed; a whole link is accepted, too. */
export function keepToken(text) {
  const found = text.includes('token=') ? new URLSearchParams(text.slice(text.indexOf('#') + 1)).get('token') : null;
  sessionStorage.setItem(KEY, (found ?? text).trim());
}

export class Refused extends Error {}

async function ask(path, options = {}) {
  // Only what headers can have: the token could be anything that was pasted.
  const token = (sessionStorage.getItem(KEY) ?? '').replace(/[^\x21-\x7e]/g, '');
  const response = await fetch(path, { headers: { Authorization: `Bearer ${token}` }, cache: 'no-store', ...options });
  if (response.status === 401) throw new Refused();
  if (!response.ok) throw new Error((await response.json().catch(() => ({}))).error ?? `HTTP ${response.status}`);
  return response;
}

/** Return the response as an object. */
export async function load(path) {
  return (await ask(path)).json();
}

/** Follow the changes for ever: call the functions of the messages, and those for the connection. */
export async function follow(messages, { opened, closed, refused }) {
  for (let attempt = 0; ; attempt++) {
    const controller = new AbortController();
    let timer;
    const wait = () => {
      clearTimeout(timer);
      timer = setTimeout(() => controller.abort(), SILENCE);
    };
    try {
      wait();
      const response = await ask('/v1/updates', { signal: controller.signal });
      for await (const [name, content] of readEvents(response.body, wait)) {
        if (attempt !== -1) opened();
        attempt = -1;
        messages[name]?.(content);
      }
    } catch (error) {
      if (error instanceof Refused) {
        refused();
        return;
      }
    } finally {
      clearTimeout(timer);
    }
    closed();
    attempt = Math.max(attempt, 0);
    await new Promise((done) => setTimeout(done, PAUSES[Math.min(attempt, PAUSES.length - 1)]));
  }
}

/** Why not EventSource? It cannot send the token in a header. */
async function* readEvents(stream, received) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    received();
    const parts = (text + value).split('\n\n');
    text = parts.pop();
    for (const part of parts) {
      const [head, body] = part.split('\n');
      yield [head.slice('event: '.length), JSON.parse(body.slice('data: '.length))];
    }
  }
}
