"""`serve --config` and `exec --config` as processes: who answers which model, and why somebody does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from cli.exec.command import Command, environment
from harness import RunningBridge, running_bridge, scripted_codex, turns
from upstream import anthropic_server, chatgpt, openai_chat
from warm import run_warm

CHAT_KEY = "sk-canary-chat-0123456789"
OWN_KEY = "sk-canary-own-0123456789"
CONFIG = """
[settings]
max_body = 50_000

[backends.claude]
type = "anthropic"
base_url = "{claude}"
key_env = "CLAUDE_KEY"

[backends.chat]
type = "openai"
base_url = "{chat}/v1"
key_env = "CHAT_KEY"
discovery = true
headers = {{ x-team = "a" }}

[backends.locked]
type = "openai"
base_url = "{chat}/v1"
key_env = "LOCKED_KEY"
discovery = true

[backends.direct]
type = "codex"

[routing]
default = "direct"

[routing.patterns]
chat = ["llama-"]
locked = ["locked-"]
app-server = ["own-"]

[routing.aliases]
quick = "llama-quick"
"""


@dataclass(frozen=True)
class Place:
    """Three providers and a Codex, and the variables that lead to them."""

    directory: Path
    claude: anthropic_server.Anthropic
    chat: openai_chat.ChatServer
    direct: chatgpt.ChatGPT
    variables: dict[str, str]

    def config(self, text: str, name: str) -> Path:
        path = self.directory / name
        path.write_text(text.format(claude=self.claude.url, chat=self.chat.url))
        return path

    def asked(self) -> tuple[int, int, int]:
        """How many requests each has had."""
        return len(self.claude.requests), len(self.chat.requests), len(self.direct.requests)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("serve-config")
    with (
        anthropic_server.serving_in_thread() as claude,
        openai_chat.serving_in_thread() as chat,
        chatgpt.serving_in_thread() as direct,
    ):
        chat.key = CHAT_KEY
        noting_codex(directory)
        variables = {
            "CODEX_BIN": str(directory / "codex"),
            "PROXY_MODELS": "own-model",
            "CLAUDE_KEY": anthropic_server.KEY,
            "CHAT_KEY": CHAT_KEY,
            **direct.environment(direct.home(directory)),
        }
        yield Place(directory, claude, chat, direct, variables)
        assert claude.faults + chat.faults + direct.faults == []


@pytest.fixture(scope="module")
def bridge(place: Place) -> Iterator[RunningBridge]:
    path = place.config(CONFIG, "bridge.toml")
    with running_bridge(place.directory, "--config", str(path), **place.variables) as running:
        yield running


def noting_codex(directory: Path) -> Path:
    """Put a Codex into a directory; the file that is there once it has been started."""
    codex = scripted_codex(directory, turns(*[[{"text": "from the child"}]] * 5))
    started = directory / "started"
    codex.write_text(codex.read_text().replace("\n", f"\ntouch {started}\n", 1))
    return started


def answer(bridge: RunningBridge, model: str, **headers: str) -> str:
    """What is said to a greeting."""
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    with bridge.client() as client:
        response = client.post("/chat/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def refusal(bridge: RunningBridge, model: str) -> dict[str, Any]:
    """How a model is refused."""
    response = bridge.post("/responses", {"model": model, "input": "hi"})
    assert response.status_code == 400, response.text
    return dict(response.json()["error"])


# serve


@pytest.mark.parametrize(
    ("model", "said", "asked"),
    [
        ("claude-sonnet-4-5", anthropic_server.DEFAULT_TEXT, (1, 0, 0)),
        ("sonnet", anthropic_server.DEFAULT_TEXT, (1, 0, 0)),
        ("llama-3", openai_chat.DEFAULT_TEXT, (0, 1, 0)),
        ("Quick", openai_chat.DEFAULT_TEXT, (0, 1, 0)),
        ("gpt-5.2-codex", chatgpt.DEFAULT_TEXT, (0, 0, 1)),
        ("o3", chatgpt.DEFAULT_TEXT, (0, 0, 1)),
    ],
)
def test_a_model_is_answered_by_its_backend(
    bridge: RunningBridge, place: Place, model: str, said: str, asked: tuple[int, int, int]
) -> None:
    """And by no other one."""
    before = place.asked()
    assert answer(bridge, model) == said
    assert tuple(now - then for now, then in zip(place.asked(), before, strict=True)) == asked


def test_a_discovered_model_is_answered_by_who_lists_it(bridge: RunningBridge, place: Place) -> None:
    """The list has it, and no pattern is needed; nothing is listed of a backend that is off."""
    with bridge.client() as client:
        names = [model["id"] for model in client.get("/models").json()["data"]]
    assert {"some-model", "other-model", "quick", "sonnet", "mock-echo"} <= set(names)
    assert not any(name.startswith("locked") for name in names)
    assert answer(bridge, "some-model") == openai_chat.DEFAULT_TEXT
    assert place.chat.requests[-1].headers["x-team"] == "a"


def test_a_missing_key_is_one_warning(bridge: RunningBridge) -> None:
    """Of the backend that was asked for; of those that nobody configured there is none."""
    refusal(bridge, "locked-1")
    warnings = [line for line in bridge.stderr.read_text().splitlines() if "is not set" in line]
    assert warnings == [
        "WARNING bridge: The backend locked is off: LOCKED_KEY is not set. "
        "It serves only requests with a key of their own (X-Provider-Key)."
    ]


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("locked-1", "The backend locked is off: LOCKED_KEY is not set."),
        ("gemini-2.5-pro", "The backend gemini is off: GEMINI_API_KEY is not set."),
        ("nobody", None),
    ],
)
def test_an_unknown_model_is_told_what_exists(bridge: RunningBridge, place: Place, model: str, why: str | None) -> None:
    """And why the backend that it would lead to is off; nobody is asked."""
    before = place.asked()
    error = refusal(bridge, model)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert model in error["message"]
    assert "own-model" in error["message"]
    assert (why or "does not exist here") in error["message"]
    assert why is not None or "is off" not in error["message"]
    assert place.asked() == before


def test_a_backend_that_is_off_serves_who_brings_a_key(bridge: RunningBridge, place: Place) -> None:
    """With that key and no other."""
    place.chat.key = OWN_KEY
    try:
        assert answer(bridge, "locked-1", **{"x-provider-key": OWN_KEY}) == openai_chat.DEFAULT_TEXT
    finally:
        place.chat.key = CHAT_KEY
    assert place.chat.requests[-1].headers["authorization"] == f"Bearer {OWN_KEY}"
    assert "LOCKED_KEY" in refusal(bridge, "locked-1")["message"]
    assert answer(bridge, "llama-3") == openai_chat.DEFAULT_TEXT
    assert place.chat.requests[-1].headers["authorization"] == f"Bearer {CHAT_KEY}"


def test_the_settings_of_the_file_are_used(bridge: RunningBridge) -> None:
    """Where neither the environment nor a flag says otherwise."""
    response = bridge.post("/responses", {"model": "mock-echo", "input": "x" * 60_000})
    assert response.status_code == 413


def test_codex_is_started_when_it_is_asked_for(place: Place, tmp_path: Path) -> None:
    """With another default it is not started before that, whatever else is answered or refused."""
    path = str(place.config(CONFIG, "on-demand.toml"))
    started = noting_codex(tmp_path)
    variables = {**place.variables, "CODEX_BIN": str(tmp_path / "codex")}
    with running_bridge(tmp_path, "--config", path, **variables) as bridge:
        assert answer(bridge, "gpt-5.2-codex") == chatgpt.DEFAULT_TEXT
        assert answer(bridge, "llama-3") == openai_chat.DEFAULT_TEXT
        refusal(bridge, "nobody")
        assert not started.exists()
        assert answer(bridge, "own-model") == "from the child"
        assert started.exists()


def test_a_discovered_model_is_known_from_the_first_request_on(place: Place, tmp_path: Path) -> None:
    """Nobody has asked for the list before; after a restart a client just goes on."""
    path = str(place.config(CONFIG, "first.toml"))
    with running_bridge(tmp_path, "--config", path, **place.variables) as bridge:
        assert answer(bridge, "some-model") == openai_chat.DEFAULT_TEXT


def test_no_key_is_told(bridge: RunningBridge) -> None:
    """Whatever went wrong above."""
    assert "canary" not in bridge.stderr.read_text()


def test_with_the_mock_models_alone_no_backend_is_there(place: Place, tmp_path: Path) -> None:
    """Nor a warning of one."""
    path = place.config(CONFIG, "mock.toml")
    with running_bridge(tmp_path, "--mock-only", PROXY_CONFIG=str(path)) as bridge:
        assert "mock-echo" in refusal(bridge, "llama-3")["message"]
        assert bridge.post("/responses", {"model": "mock-echo", "input": "hi"}).status_code == 200
        assert "WARNING" not in bridge.stderr.read_text()


def test_a_default_without_its_key_is_not_asked(place: Place, tmp_path: Path) -> None:
    """The client is told which variable is missing; nothing is sent without a key."""
    text = CONFIG.replace('default = "direct"', 'default = "locked"')
    before = place.asked()
    with running_bridge(tmp_path, "--config", str(place.config(text, "off.toml")), **place.variables) as bridge:
        response = bridge.post("/responses", {"model": "gpt-5.2", "input": "hi"})
    assert place.asked() == before
    assert response.status_code == 400
    assert "LOCKED_KEY" in response.text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[backends.a]\ntype = "openai"\n', "1: backends.a: base_url: required for a backend of type openai"),
        ('[routing]\ndefault = "x"\n', "2: routing.default: unknown backend 'x'"),
        ("[settings]\nport = 99999\n", "2: settings.port: "),
        ("[routing\n", "1:9: expected ']' at the end of a table declaration"),
        pytest.param('[backends.a]\ntype = "openai"\npreset = "x"\n', "3: backends.a.preset: "),
    ],
)
def test_a_mistake_in_the_file_ends_the_program(tmp_path: Path, text: str, told: str) -> None:
    """One line, exit code 2, before anything is started."""
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    done = run_warm("serve", "--port", "0", "--config", path, text=True, env=environment(tmp_path), timeout=30)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {path}:{told}")
    assert done.stderr.count("\n") == 1


# exec


@pytest.fixture(scope="module")
def bare(place: Place) -> Command:
    """Without a file and without keys."""
    directory = place.directory / "exec"
    directory.mkdir()
    return Command(directory, environment(directory), ("--json", "--prompt", "hi"))


@pytest.fixture(scope="module")
def command(place: Place, bare: Command) -> Command:
    """With everything."""
    path = place.config(CONFIG.replace('default = "direct"', 'default = "app-server"'), "exec.toml")
    return configured(bare, place, path)


def configured(bare: Command, place: Place, path: Path) -> Command:
    return replace(bare, environment=bare.environment | place.variables, always=(*bare.always, "--config", path))


@pytest.mark.parametrize(
    ("arguments", "said", "model"),
    [
        ("--model llama-3", openai_chat.DEFAULT_TEXT, "llama-3"),
        ("--model quick", openai_chat.DEFAULT_TEXT, "llama-quick"),
        ("--model anything --backend chat", openai_chat.DEFAULT_TEXT, "anything"),
        ("--model claude-x", anthropic_server.DEFAULT_TEXT, "claude-x"),
        ("--model opus", anthropic_server.DEFAULT_TEXT, "claude-opus-4-5-20251101"),
        ("--model gpt-5.2 --backend direct", chatgpt.DEFAULT_TEXT, "gpt-5.2"),
        ("--model gpt-5.2 --backend codex", chatgpt.DEFAULT_TEXT, "gpt-5.2"),
        ("--model own-model", "from the child", None),
    ],
)
def test_exec_goes_where_serve_would(
    command: Command, place: Place, arguments: str, said: str, model: str | None
) -> None:
    """By alias, pattern, kind, or the flag; the provider gets the model's own name."""
    ran = command.run(*arguments.split())
    ran.succeeded()
    assert ran.text == said
    if model is not None:
        servers = {openai_chat.DEFAULT_TEXT: place.chat, anthropic_server.DEFAULT_TEXT: place.claude}
        assert servers.get(said, place.direct).requests[-1].body["model"] == model


def test_exec_reads_the_file_that_the_environment_names(command: Command) -> None:
    """--config wins."""
    config = str(command.always[-1])
    by_variable = replace(command, always=("--json", "--prompt", "hi", "--model", "quick"))
    assert by_variable.run(PROXY_CONFIG=config).text == openai_chat.DEFAULT_TEXT
    assert by_variable.run("--config", config, PROXY_CONFIG="/nowhere").text == openai_chat.DEFAULT_TEXT
    assert "/nowhere" in by_variable.run(PROXY_CONFIG="/nowhere").failed("invalid_configuration", 2)


def test_exec_tells_a_mistake_in_the_file(bare: Command, place: Place) -> None:
    """With file, line and key, as a line of its output too."""
    path = place.config('[routing]\ndefault = "x"\n', "wrong.toml")
    message = bare.run("--config", path, "--model", "gpt-5").failed("invalid_configuration", 2)
    assert message.startswith(f"{path}:2: routing.default: unknown backend 'x'")


@pytest.mark.parametrize(
    ("arguments", "variable"),
    [
        ("--model claude-x", "ANTHROPIC_API_KEY"),
        ("--model sonnet", "ANTHROPIC_API_KEY"),
        ("--model gemini", "GEMINI_API_KEY"),
        ("--backend groq --model x", "GROQ_API_KEY"),
        ("--backend anthropic --model x", "ANTHROPIC_API_KEY"),
    ],
)
def test_exec_names_the_variable_that_is_missing(place: Place, bare: Command, arguments: str, variable: str) -> None:
    """Exit code 2; nothing is asked, and Codex is not started instead."""
    before = place.asked()
    message = bare.run(*arguments.split()).failed("invalid_configuration", 2)
    assert f"{variable} is not set" in message
    assert "--provider-key" in message
    assert place.asked() == before


def test_exec_may_bring_the_key_itself(command: Command, place: Place) -> None:
    """Then a backend that is off answers."""
    assert "LOCKED_KEY is not set" in command.run("--model", "locked-1").failed("invalid_configuration", 2)
    ran = command.run("--model", "locked-1", "--provider-key", CHAT_KEY)
    ran.succeeded(silent=False)
    assert ran.text == openai_chat.DEFAULT_TEXT
    assert "canary" not in ran.stderr + ran.stdout.decode()


def test_exec_names_the_backends_that_there_are(command: Command) -> None:
    """For one that there is not."""
    message = command.run("--backend", "nobody").failed("usage_error", 2)
    for name in ("nobody", "app-server", "codex", "mock", "claude", "chat", "locked", "direct"):
        assert name in message


def test_exec_does_not_ask_for_a_list_without_a_key(command: Command) -> None:
    """Nor is it needed: the model was named."""
    assert command.run("--model", "locked-1", "--provider-key", CHAT_KEY).stderr == ""


def test_exec_follows_a_pattern_to_the_mock(place: Place, bare: Command) -> None:
    """As serve does."""
    path = place.config('[routing.patterns]\nmock = ["pretend-"]\n', "mock-pattern.toml")
    configured(bare, place, path).run("--model", "pretend-1").succeeded()


def test_exec_follows_a_pattern_to_an_app_server_of_another_name(place: Place, bare: Command) -> None:
    """The default must not get what is not meant for it."""
    text = CONFIG.replace('default = "direct"', 'default = "chat"').replace("app-server = [", "main = [")
    path = place.config(text + '[backends.main]\ntype = "app-server"\n', "renamed.toml")
    before = place.asked()
    configured(bare, place, path).run("--model", "own-other")
    assert place.asked() == before


def test_every_mistake_of_the_file_is_told_before_anything_starts(tmp_path: Path) -> None:
    """A line for each, with its place."""
    path = tmp_path / "wrong.toml"
    path.write_text('[settings]\nprot = 1\n[backends.a]\ntype = "openai"\n[routing]\ndefault = "b"\n')
    done = run_warm("serve", "--config", str(path), text=True, env=environment(tmp_path), timeout=30)
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.split(": ")[1:3] for line in done.stderr.splitlines()] == [
        [f"{path}:2", "settings.prot"],
        [f"{path}:3", "backends.a"],
        [f"{path}:6", "routing.default"],
    ]
