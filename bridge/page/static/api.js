// Requests to the bridge that served this page, and the streams of what happens there.

class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let onSignedOut = () => {};

// What happens when the bridge does not know this session (any more).
export function whenSignedOut(act) {
  onSignedOut = act;
}

// JSON whose numbers keep all their digits, in browsers that know `JSON.rawJSON`: others round what is beyond 2^53.
export function exactJson(text) {
  if (!JSON.rawJSON) return JSON.parse(text);
  return JSON.parse(text, (_, value, { source }) => (typeof value === "number" && String(value) !== source ? JSON.rawJSON(source) : value));
}

async function request(path, { parse = JSON.parse, ...options }) {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The bridge does not answer. Is it still running?");
  }
  const text = await answer.text();
  let value = null;
  try {
    value = text ? parse(text) : null;
  } catch {
    // An answer of something else, such as a proxy: only its status is known.
  }
  if (answer.ok) return value;
  const said = value && value.error && value.error.message;
  const error = new ApiError(answer.status, typeof said === "string" ? said : `The bridge answered HTTP ${answer.status}.`);
  if (answer.status === 401 && !path.endsWith("/session")) onSignedOut(error);
  throw error;
}

export const get = (path, signal) => request(`/page/api/${path}`, { signal });

// `body` is a value, or JSON text, which is sent as it is: numbers in it keep all their digits.
function post(path, body) {
  const headers = { "content-type": "application/json" };
  return request(path, { method: "POST", headers, body: typeof body === "string" ? body : JSON.stringify(body || {}) });
}

export const act = (path, body) => post(`/page/api/${path}`, body);

export const signIn = (secret) => post("/page/session", secret);

export const signOut = () => request("/page/session", { method: "DELETE", headers: { "content-type": "application/json" } });

// The request of a turn, as it was recorded, with all of its texts and digits.
export const requestOfTurn = async (id) => (await request(`/page/api/${turnPath(id)}/wire?only=request`, { parse: exactJson })).request;

// Encoded twice: the server's paths are decoded once before they are taken apart, and an id from a log may have slashes.
export const turnPath = (id) => `turns/${encodeURIComponent(encodeURIComponent(id))}`;

const FIRST_WAIT = 1000;
const LONGEST_WAIT = 15000;

// Server-sent events, reconnected for as long as they are wanted. `handlers` are called by the name of the event;
// `onState` with "live" or "reconnecting". Returns what ends it; its `again` reconnects. A page that no one sees holds no connection: a browser
// has six of them to one host, for all its tabs.
export function follow(path, handlers, onState = () => {}) {
  let source = null;
  let timer = null;
  let wait = FIRST_WAIT;
  const close = () => {
    clearTimeout(timer);
    if (source) source.close();
    source = null;
  };
  const again = () => {
    close();
    onState("reconnecting");
    timer = setTimeout(connect, wait);
    wait = Math.min(wait * 2, LONGEST_WAIT);
  };
  const connect = () => {
    close();
    source = new EventSource(`/page/api/${path}`);
    source.addEventListener("open", () => {
      wait = FIRST_WAIT;
      onState("live");
    });
    // The browser reconnects by itself only after some failures, and does not say when: this does it after all. `bye`
    // ends the session, or the bridge.
    for (const name of ["error", "bye"]) {
      source.addEventListener(name, () => {
        again();
        get("about").catch(() => {}); // a session that is over leads to the sign-in
      });
    }
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => handle(event.data ? JSON.parse(event.data) : null));
    }
  };
  const seen = () => {
    if (!document.hidden) connect();
    else {
      close();
      onState("reconnecting");
    }
  };
  document.addEventListener("visibilitychange", seen);
  if (!document.hidden) connect();
  const end = () => {
    document.removeEventListener("visibilitychange", seen);
    close();
  };
  end.again = again;
  return end;
}
