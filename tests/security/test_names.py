"""Names that clients choose are never paths: whatever an id holds, no file is read, made or changed by it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from harness import RunningBridge, running_bridge
from protocols.cap.samples import request_body
from security.doors import doors
from warm import run_warm

from bridge.errors import ConfigError
from bridge.routing.setup import prepare_workdir

NAMES = {
    "parent": "../../etc/passwd",
    "parent_encoded": "..%2f..%2fetc%2fpasswd",
    "parent_encoded_twice": "%252e%252e%252fetc%252fpasswd",
    "dots": "..",
    "dot": ".",
    "root": "/etc/passwd",
    "home": "~/.ssh/id_rsa",
    "windows": "..\\..\\windows\\win.ini",
    "drive": "C:\\nul",
    "device": "con",
    "nul": "resp_\0.json",
    "line_end": "resp_\r\nx: y",
    "long": "x" * 5_000,
    "unicode": "r\u00e9sp_\u202e\u2028\ufeff",
    "half_a_character": "\ufffd\U0010ffff",
    "hidden": ".hidden",
    "shell": "$(touch canary)`touch canary`;touch canary",
    "sql": "' OR '1'='1'; DROP TABLE responses; --",
    "wildcards": "%",
    "any_one": "_" * 37,
    "star": "resp_*",
    "blank": " ",
    "state": "state/turnbridge/responses.sqlite3",
}
EXPECTED = (400, 404, 405, 409, 422)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("names")


@pytest.fixture(scope="module")
def bridge(home: Path) -> Iterator[RunningBridge]:
    with running_bridge(home, "--mock-only", f"--log-events={home / 'events.ndjson'}") as ready:
        yield ready
        assert "Traceback" not in ready.stderr.read_text()


@pytest.fixture(scope="module")
def client(bridge: RunningBridge) -> Iterator[httpx2.Client]:
    with bridge.client() as ready:
        yield ready


@pytest.fixture(scope="module")
def kept(client: httpx2.Client) -> dict[str, str]:
    """Things that are there, to be found by their own names alone."""
    response = client.post("/responses", json={"model": "mock-echo", "input": "kept"}).json()["id"]
    conversation = client.post("/conversations", json={}).json()["id"]
    return {f"/responses/{response}": response, f"/conversations/{conversation}": conversation}


def files(directory: Path) -> set[Path]:
    """What there is, without what SQLite makes and removes as it likes."""
    found = {Path(base) / name for base, _, names in os.walk(directory) for name in names}
    return {path for path in found if not path.name.endswith(("-wal", "-shm", "-journal"))}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_in_a_path_is_a_name(
    client: httpx2.Client, bridge: RunningBridge, home: Path, kept: dict[str, str], name: str
) -> None:
    """On every route that has a place for one, plain and as encoded as can be: there is no such thing."""
    before = files(home)
    for door in doors(home):
        if "{" not in door.path:
            continue
        for written in {quote(name, safe=""), quote(name, safe="/"), "".join(f"%{byte:02x}" for byte in name.encode())}:
            url = door.path
            while "{" in url:
                url = url[: url.index("{")] + written + url[url.index("}") + 1 :]
            for method in door.methods:
                answer = client.request(method, bridge.root + url, json={} if method == "POST" else None)
                # A client leaves out `..` by itself, and may then come to a place that is there.
                if ".." not in url and "/./" not in f"{url}/":
                    assert answer.status_code in EXPECTED, (method, url, answer.text)
                assert answer.status_code < 500
                assert "root:" not in answer.text
    assert files(home) == before
    for url, own in kept.items():
        assert client.get(url).json()["id"] == own


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_in_a_body_is_a_name(client: httpx2.Client, home: Path, kept: dict[str, str], name: str) -> None:
    """Of what is continued, kept, cached, or asked for; it is refused, or it is used as a word."""
    before = files(home)
    said: dict[str, Any] = {"model": "mock-echo", "input": "hi"}
    unknown: list[dict[str, Any]] = [
        {**said, "previous_response_id": name},
        {**said, "conversation": name},
        {**said, "conversation": {"id": name}},
        {**said, "input": [{"type": "item_reference", "id": name}]},
        {**said, "model": name},
    ]
    for body in unknown:
        answer = client.post("/responses", json=body)
        assert answer.status_code in EXPECTED, (body, answer.text)
    words = {"prompt_cache_key": name, "user": name, "safety_identifier": name, "metadata": {"case": name[:500]}}
    for member, value in words.items():
        assert client.post("/responses", json={**said, member: value}).status_code in (200, *EXPECTED)
    asked = request_body(
        query="hi", conversation_id=name, context={"session_id": name, "user": {"id": name, "name": name}}
    )
    assert client.post("/assist", json=asked).status_code in (200, *EXPECTED)
    assert files(home) == before
    assert not list(home.rglob("canary*"))
    for url, own in kept.items():
        assert client.get(url).json()["id"] == own


# Links in the place of our own files


def started(directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(directory), "XDG_STATE_HOME": str(directory / "state"), "PORT": "0"}
    done: subprocess.CompletedProcess[str] = run_warm("serve", "--mock-only", env=env | environment, text=True)
    return done


def test_a_link_in_the_place_of_the_key_is_not_followed(tmp_path: Path) -> None:
    """Else whoever put it there would choose where our key is written."""
    place = tmp_path / "state/turnbridge"
    place.mkdir(parents=True)
    (place / "api-key").symlink_to(tmp_path / "bait")
    done = started(tmp_path)
    assert done.returncode == 2
    assert "Cannot store an API key" in done.stderr
    assert not (tmp_path / "bait").exists()


@pytest.mark.parametrize("kind", ["link", "open", "directory", "binary"])
def test_a_key_that_others_could_have_put_there_is_not_used(tmp_path: Path, kind: str) -> None:
    """Else they would know it."""
    place = tmp_path / "state/turnbridge"
    place.mkdir(parents=True)
    key = place / "api-key"
    if kind == "directory":
        key.mkdir()
    elif kind == "link":
        (tmp_path / "theirs").write_text("cb-a-key-that-they-know-0123456789\n")
        key.symlink_to(tmp_path / "theirs")
    else:
        key.write_bytes(b"\xff" if kind == "binary" else b"cb-a-key-that-they-know-0123456789\n")
        key.chmod(0o666 if kind == "open" else 0o600)
    done = started(tmp_path)
    assert done.returncode == 2
    assert "Cannot store an API key" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["link", "open", "file"])
def test_a_working_directory_that_others_could_have_made_is_refused(tmp_path: Path, kind: str) -> None:
    """In a shared /tmp somebody may have been there first."""
    place = tmp_path / "work"
    if kind == "link":
        (tmp_path / "real").mkdir()
        place.symlink_to("real")
    elif kind == "open":
        place.mkdir()
        place.chmod(0o777)
    else:
        place.write_text("")
    codex = tmp_path / "codex"
    codex.write_text("#!/bin/sh\n")
    codex.chmod(0o755)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PROXY_CODEX_WORKDIR": str(place),
        "CODEX_BIN": str(codex),
        "PROXY_API_KEY": "a-key-0123456789",
        "PORT": "0",
    }
    done = run_warm("serve", env=env, text=True)
    assert done.returncode == 2
    assert "PROXY_CODEX_WORKDIR" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can give a directory away")
def test_a_working_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "work"
    place.mkdir(mode=0o700)
    os.chown(place, 65534, 65534)
    with pytest.raises(ConfigError, match="another user"):
        prepare_workdir(place)
