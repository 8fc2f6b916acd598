// How a session begins: with the token of the printed address, or with a key.

import { signIn } from "./api.js";
import { field } from "./dialog.js";
import { button, byId, make } from "./dom.js";

// The token of the address, which is removed from it at once, so that no bookmark or history keeps it.
export function takeToken() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (!found) return null;
  history.replaceState(null, "", location.pathname);
  return found[1];
}

export async function signInWithToken(token) {
  try {
    await signIn({ token });
    return null;
  } catch (error) {
    return error.status === 401 ? "The address that you opened works once, for ten minutes. Restart the bridge for a new one, or sign in with a key." : error.message;
  }
}

export function showSignIn(message, onSignedIn) {
  const key = make("input");
  Object.assign(key, { type: "password", name: "key", autocomplete: "off", required: true, spellcheck: false });
  const told = make("p", "bad", message || "");
  told.setAttribute("role", "alert");
  const send = button("Sign in", () => {}, "primary");
  send.type = "submit";
  const form = make("form", "", field("API key", key), told, send);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    try {
      await signIn({ key: key.value.trim() });
      key.value = "";
      onSignedIn();
    } catch (error) {
      told.textContent = error.status === 401 ? "The bridge does not accept this key." : error.message;
      key.focus();
    } finally {
      send.disabled = false;
    }
  });
  const title = make("h2", "", "Sign in");
  title.id = "signin-title";
  byId("signin").replaceChildren(make("div", "card signin", title,
    make("p", "note", "Open the address that ", make("code", "", "turnbridge serve"), " prints, or enter an API key; it also prints where its own key is stored. A key sees its own turns; the operator's key sees all."), form));
  key.focus();
}
