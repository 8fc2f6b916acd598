"""Read the instructions of a Dockerfile; `run.py` runs them in Debian roots instead of containers."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

KNOWN = {
    *("ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM"),
    *("HEALTHCHECK", "RUN", "USER", "VOLUME", "WORKDIR"),
}


@dataclass
class Stage:
    """A FROM and what follows it."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Image:
    """How the last stage runs."""

    environment: dict[str, str] = field(default_factory=dict)
    directory: str = "/"
    user: str = "0:0"
    volumes: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions with their arguments; continued lines are joined and comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            if word not in KNOWN:
                raise ValueError(
                    f"{word} is not an instruction that scripts/clean-root can run. Use one of {sorted(KNOWN)}."
                )
            yield word, " ".join(rest.split()) if word != "RUN" else rest.strip()


def stages(text: str) -> list[Stage]:
    found: list[Stage] = []
    for word, rest in instructions(text):
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(Stage(base, name))
        else:
            found[-1].steps.append((word, rest))
    return found


def image_of(stage: Stage) -> Image:
    """The settings of a stage after its last step."""
    image = Image()
    entry: list[str] = []
    arguments: list[str] = []
    for word, rest in stage.steps:
        if word == "ENV":
            name, _, value = rest.partition("=")
            image.environment[name] = value
        elif word == "WORKDIR":
            image.directory = rest
        elif word == "USER":
            image.user = rest
        elif word == "VOLUME":
            image.volumes.append(rest)
        elif word == "ENTRYPOINT":
            entry = json.loads(rest)
        elif word == "CMD":
            arguments = json.loads(rest)
        elif word == "HEALTHCHECK":
            image.health = json.loads(rest.partition(" CMD ")[2])
    image.command = [*entry, *arguments]
    return image


@dataclass(frozen=True)
class Copy:
    """A COPY: the stage that it copies from (or nothing, for the context), and the new owner, if any."""

    stage: str
    owner: str
    sources: list[str]
    target: str


def copied(rest: str) -> Copy:
    words = shlex.split(rest)
    options = {"--from": "", "--chown": ""}
    while words[0].startswith("--"):
        name, _, value = words.pop(0).partition("=")
        if name not in options:
            raise ValueError(f"COPY {name} cannot be run by scripts/clean-root. Use {' or '.join(options)}.")
        options[name] = value
    return Copy(options["--from"], options["--chown"], words[:-1], words[-1])
