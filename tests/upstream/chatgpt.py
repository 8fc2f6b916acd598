"""A scripted ChatGPT backend and token endpoint on the loopback, for tests of the direct client.

In a trio test, in the same event loop (so that an autojump clock never jumps over an answer):

    async with serving() as chatgpt:
        home = chatgpt.home(tmp_path)                        # a CODEX_HOME with a login that works
        chatgpt.will(refusal(503), Stream(answer(text("hello"))))
        ...
        assert chatgpt.faults == []

Around processes, in a thread of its own:

    with serving_in_thread() as chatgpt:
        subprocess.run([...], env=chatgpt.environment(home))
        chatgpt.wait_for(lambda: chatgpt.gone)

Answers are taken from the script in order of arrival. A request without a valid token gets 401, a wrong one 400 and an
entry in `faults`; neither takes an answer. When the script is empty the answer is a text: the outputs of tool calls if
the input ends with some, else `DEFAULT_TEXT`.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any

from upstream.answers import Answer, Plain, Stream, refusal
from upstream.checks import API_PATH, CHATGPT_PATH, TOKEN_PATH, request_faults, token_faults
from upstream.connection import Request
from upstream.events import answer, text
from upstream.serving import ScriptedProvider, served, served_in_thread
from upstream.tokens import Form, Logins, auth_json, write_auth_json

Json = dict[str, Any]

DEFAULT_TEXT = "hello from the backend"


class ChatGPT(ScriptedProvider):
    """The backend's state. In a thread, read it after `wait_for`; in trio, after `until`."""

    def __init__(self) -> None:
        super().__init__()
        self.logins = Logins()

    def __repr__(self) -> str:
        answered = [request.status for request in self.requests]
        return f"<ChatGPT answered={answered} tokens={len(self.token_requests)} gone={len(self.gone)} {self.faults}>"

    @property
    def base_url(self) -> str:
        return self.url + CHATGPT_PATH.removesuffix("/responses")

    @property
    def api_base_url(self) -> str:
        return self.url + API_PATH.removesuffix("/responses")

    @property
    def token_url(self) -> str:
        return self.url + TOKEN_PATH

    def home(self, directory: Path, form: Form = "chatgpt", **more: Any) -> Path:
        """A CODEX_HOME in this directory with a login that works."""
        return write_auth_json(directory / "codex-home", auth_json(form, self.logins, **more)).parent

    def environment(self, home: Path) -> dict[str, str]:
        """The settings that send a bridge here."""
        return {
            "CODEX_HOME": str(home),
            "PROXY_CODEX_BASE_URL": self.base_url,
            "PROXY_CODEX_API_BASE_URL": self.api_base_url,
            "PROXY_CODEX_TOKEN_URL": self.token_url,
        }

    # Deciding

    def reply_to(self, request: Request) -> Answer:
        """Count a request in; what it is answered."""
        if request.path == TOKEN_PATH:
            self.token_requests.append(request)
            faults = list(token_faults(request.header_list, request.body))
            reply = self._wrong(faults) if faults else self._token_reply(request)
        elif request.path in (CHATGPT_PATH, API_PATH):
            self.requests.append(request)
            faults = list(request_faults(request.path, request.header_list, request.body, self.logins.account))
            reply = self._unauthorized(request) or (self._wrong(faults) if faults else self._next(request))
        else:
            reply = self._wrong([f"no such path: {request.path}"], status=404)
        self.note()
        return reply

    def _wrong(self, faults: list[str], status: int = 400) -> Plain:
        self.faults += faults
        return refusal(status, None, faults[0])

    def _unauthorized(self, request: Request) -> Plain | None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if request.path == CHATGPT_PATH and token not in self.logins.access:
            return refusal(401, "token_expired", f"Provided authentication token is expired: {token}")
        if request.path == API_PATH and token not in self.logins.keys:
            return refusal(401, "invalid_api_key", f"Incorrect API key provided: {token}")
        return None

    def _token_reply(self, request: Request) -> Answer:
        if self.token_script:
            return self.token_script.popleft()
        own = self.logins.refresh(request.body["refresh_token"])
        return Plain(own.status, own.body, own.headers, self.token_gate)

    def _next(self, request: Request) -> Answer:
        if self.script:
            reply = self.script.popleft()
            return reply(request) if callable(reply) else reply
        outputs = []
        for item in reversed(request.body["input"]):
            if not str(item.get("type")).endswith("_call_output"):
                break
            outputs.append(str(item.get("output")))
        said = "result: " + "; ".join(reversed(outputs)) if outputs else DEFAULT_TEXT
        return Stream(answer(text(said)))


def serving() -> AbstractAsyncContextManager[ChatGPT]:
    """A backend in this event loop; leaving the block cuts whatever streams."""
    return served(ChatGPT())


def serving_in_thread() -> AbstractContextManager[ChatGPT]:
    """A backend in a thread of its own; leaving the block cuts whatever streams and joins the thread."""
    return served_in_thread(ChatGPT(), "chatgpt")
