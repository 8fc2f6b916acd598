"""Install the wheel where there is nothing else, and use it as a person does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
import venv
from pathlib import Path

from building import Failed, run, say

SUITE = """\
tools:
  time: {description: The time., parameters: {type: object, properties: {city: {type: string}}}}
defaults: {category: single, tools: [time]}
cases:
  - id: one
    messages: [{role: user, content: What time is it in Bern?}]
    expect: {calls: [{name: time, arguments: {"*": {$anything: true}}}]}
"""


def plain_environment(home: Path) -> dict[str, str]:
    """Nothing of this machine but the path, certificates and pip's settings."""
    home.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_", "LANG"))}
    config = Path.home() / ".config/pip/pip.conf"
    if config.exists():
        kept.setdefault("PIP_CONFIG_FILE", str(config))
    return kept | {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "XDG_STATE_HOME": str(home / "state")}


class Environment:
    """A virtual environment with the wheel and its dependencies alone."""

    def __init__(self, prefix: Path, wheel: Path) -> None:
        say("installing the wheel into an empty environment")
        self.prefix = prefix
        self.home = prefix.with_name("home")
        venv.create(prefix, with_pip=True)
        self.variables = plain_environment(self.home)
        self.pip("install", "--quiet", wheel)
        say(self.pip("check").strip())

    def pip(self, *words: str | Path) -> str:
        command = [self.prefix / "bin/python", "-m", "pip", "--disable-pip-version-check", *words]
        return run(command, env=self.variables, cwd=self.home)

    def add_extras(self, wheel: Path) -> None:
        say("installing the extras (Codex is 140 MB)")
        self.pip("install", "--quiet", f"{wheel}[all]")
        self.pip("check")

    def command(self, *words: str | Path, directory: Path | None = None) -> str:
        return run([self.prefix / "bin/turnbridge", *words], env=self.variables, cwd=directory or self.home)


def check_commands(environment: Environment, work: Path) -> None:
    """serve with a request, exec, log, replay, the page and the laboratory."""
    work.mkdir()
    printed = environment.command("--version")
    if not printed.startswith("turnbridge "):
        raise Failed(f"--version printed {printed!r}")
    expect("exec --mock", environment.command("exec", "--mock", "hello"), "hello")
    log = work / "events.ndjson"
    expect("an answer of serve", serve_one(environment, log), "hello")
    expect("log ls", environment.command("log", "ls", log), "mock-echo")
    expect("log show", environment.command("log", "show", log), "hello")
    expect("replay --verify", environment.command("replay", log, "--verify"), "1 the same, 0 different")
    page = work / "page.html"
    environment.command("log", "export", log, "--html", page)
    expect("the exported page", page.read_text(encoding="utf-8"), "</script>")
    (work / "suite.yaml").write_text(SUITE)
    report = work / "report.html"
    asked: list[str | Path] = ["--mock-only", "-m", "mock-tool-call", "-n", "1", "--html", report]
    environment.command("lab", "run", "suite.yaml", *asked, directory=work)
    expect("the report of the laboratory", report.read_text(encoding="utf-8"), "</script>")
    say("serve, exec, log, replay, the page and lab work without the checkout")


def serve_one(environment: Environment, log: Path) -> str:
    """What a bridge on the mock models answers to one request. The bridge is stopped as an operator stops it."""
    command: list[str | Path] = [environment.prefix / "bin/turnbridge", "serve", "--mock-only", "--port", "0"]
    with subprocess.Popen(
        [*command, "--log-events", log, "--api-key", "a-key-of-the-package-check"],
        env=environment.variables,
        cwd=environment.home,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().split()[-1]
            request = urllib.request.Request(
                f"{url}/responses",
                json.dumps({"model": "mock-echo", "input": "hello"}).encode(),
                {"Authorization": "Bearer a-key-of-the-package-check", "Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                return str(answer.read().decode())
        finally:
            process.terminate()
            process.wait(30)


def check_completion(environment: Environment) -> None:
    """The manual page and the shells' scripts are where man and the shells look under a prefix."""
    prefix = environment.prefix
    for path in (
        "share/man/man1/turnbridge.1",
        "share/bash-completion/completions/turnbridge",
        "share/zsh/site-functions/_turnbridge",
        "share/fish/vendor_completions.d/turnbridge.fish",
    ):
        if not (prefix / path).is_file():
            raise Failed(f"the installed wheel lacks {path}")
    if shutil.which("man"):
        variables = environment.variables | {"PATH": f"{prefix}/bin:{environment.variables['PATH']}", "MANPAGER": "cat"}
        expect("man turnbridge", run(["man", "turnbridge"], env=variables), "TURNBRIDGE(1)")


def check_tools(wheel: Path, directory: Path) -> None:
    """`uv tool install` and `pipx install`, each in directories of its own."""
    variables = plain_environment(directory / "home")
    tools = Path(sys.executable).parent
    places = {
        "uv": {"UV_TOOL_DIR": f"{directory}/uv", "UV_TOOL_BIN_DIR": f"{directory}/uv-bin"},
        "pipx": {"PIPX_HOME": f"{directory}/pipx", "PIPX_BIN_DIR": f"{directory}/pipx-bin"},
    }
    commands = {
        "uv": ["tool", "install", "--quiet", "--python", sys.executable, str(wheel)],
        "pipx": ["install", "--quiet", "--python", sys.executable, str(wheel)],
    }
    for name, arguments in commands.items():
        run([tools / name, *arguments], env=variables | places[name])
        expect(name, run([directory / f"{name}-bin/turnbridge", "--version"], env=variables), "turnbridge ")
        say(f"{name} installs the wheel")


def expect(what: str, text: str, wanted: str) -> None:
    if wanted not in text:
        raise Failed(f"{what} lacks {wanted!r}: {text[:500]!r}")
