// What is open is in the address: #/turns?outcome=failed, #/turn/ID/wire?outcome=failed, #/compare/ID/ID, #/overview?hours=24.

export const FILTERS = ["grep", "outcome", "model", "since", "until", "tool", "path", "req"];

export function readAddress() {
  const [path, query] = location.hash.slice(1).split(/\?(.*)/s);
  let parts = [];
  try {
    parts = path.split("/").slice(1).map(decodeURIComponent);
  } catch {
    // Not an address of this page: the list.
  }
  const known = ["turns", "turn", "compare", "overview"];
  const view = known.includes(parts[0]) ? parts[0] : "turns";
  return { view, parts: parts.slice(1), query: new URLSearchParams(query || "") };
}

export function addressOf(view, parts = [], query = new URLSearchParams()) {
  const path = ["", view, ...parts].map(encodeURIComponent).join("/");
  const text = query.toString();
  return `#${path}${text ? `?${text}` : ""}`;
}

// Only the filters of a query: they stay while turns are opened and closed.
export function filtersOf(query) {
  const kept = new URLSearchParams();
  for (const name of FILTERS) if (query.get(name)) kept.set(name, query.get(name));
  return kept;
}

export function open(view, parts, query) {
  location.hash = addressOf(view, parts, query);
}

// The same view with another address, without a new entry in the history.
export function replace(view, parts, query) {
  history.replaceState(null, "", addressOf(view, parts, query));
}
