"""`turnbridge cap` as a person types it: exit codes, and what is said where."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from shlex import quote

import jsonschema_rs
import pytest
from cli.running import run_command
from harness import ROOT
from protocols.cap.samples import FIXTURES, SEED, WHOLE
from warm import run_warm


def validate(model: str, text: bytes) -> subprocess.CompletedProcess[bytes]:
    """`turnbridge cap validate --model MODEL`, with this on its stdin."""
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    done = run_warm("cap", "validate", "--model", model, input=text, env=env)
    assert done.stdout == b""
    assert b"Traceback" not in done.stderr
    return done


@pytest.mark.parametrize("name", SEED)
def test_the_examples_of_the_specification_are_valid(name: str) -> None:
    done = validate(name.partition(" ")[0], (FIXTURES / f"{SEED[name]}.json").read_bytes())
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_close_packet_is_valid_with_and_without_its_payload() -> None:
    assert validate("StreamPacket", b'{"op":"close","p":null}').returncode == 0
    assert validate("StreamPacket", b'{"op":"close"}').returncode == 0


@pytest.mark.parametrize(
    ("model", "text", "place"),
    [
        ("StreamPacket", b'{"op":"delta","p":1}', b"delta.p"),
        ("StreamPacket", b'{"op":"\\u001b[31m"}', b""),
        ("StreamPacket", b'{"op":"x"}', b"expected tags: 'delta', 'event', 'error', 'close'\n"),
        ("ServiceRequest", b'{"request_id":"x"}', b"request_id"),
        ("Identity", b"", b"JSON"),
        ("Identity", b"{", b"JSON"),
        ("Identity", b"\xff", b"JSON"),
        ("ProgressUpdate", b'{"label":"","status":"running","progress_percent":1.5}', b"progress_percent"),
    ],
)
def test_invalid_messages_on_stdin(model: str, text: bytes, place: bytes) -> None:
    done = validate(model, text)
    assert done.returncode == 1
    assert place in done.stderr
    assert b"\x1b" not in done.stderr


@pytest.mark.parametrize("name", ["Nothing", "identity", "", "__class__"])
def test_an_unknown_model_name(name: str) -> None:
    done = validate(name, b"{}")
    assert done.returncode == 2
    assert b"ServiceRequest" in done.stderr


def test_the_model_must_be_named() -> None:
    done = run_command("cap", "validate")
    assert done.returncode == 2
    assert "--model" in done.stderr


def test_a_schema() -> None:
    done = run_command("cap", "schema", "StreamPacket")
    assert (done.returncode, done.stderr) == (0, "")
    validator = jsonschema_rs.Draft202012Validator(json.loads(done.stdout))
    assert all(validator.is_valid(packet) for packet in WHOLE["StreamPacket"])
    assert not validator.is_valid({"op": "open", "p": None})


def test_all_schemas() -> None:
    done = run_command("cap", "schema")
    assert done.returncode == 0
    assert set(json.loads(done.stdout)) == set(WHOLE)


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("cap validate --model StreamPacket <&-", 2, "error: stdin is closed"),
        ("cap run --mock <&-", 2, "error: stdin is closed"),
        ("cap validate --model StreamPacket </proc/self/mem", 2, "error: stdin cannot be read: "),
        ("cap run --mock </proc/self/mem", 2, "error: stdin cannot be read: "),
        ("cap schema >/dev/full", 2, "error: stdout cannot be written: No space left on device."),
        ("cap schema | true", 0, ""),
    ],
)
def test_closed_and_broken_standard_streams(command: str, code: int, said: str) -> None:
    """One line, or none where nobody reads; never a traceback."""
    shell = ["sh", "-c", f"{quote(sys.executable)} -m bridge {command}"]
    done = subprocess.run(shell, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == code
    assert done.stderr.startswith(said) if said else done.stderr == ""
    assert done.stderr.count("\n") == (1 if said else 0)


def test_an_unknown_schema() -> None:
    done = run_command("cap", "schema", "Nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert "ServiceRequest" in done.stderr


def test_other_commands_do_not_pay_for_it() -> None:
    """The models are loaded by what uses them."""
    script = "import bridge.cli, sys; print([name for name in sys.modules if name.startswith('bridge.protocols.cap')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout.strip() == "[]"
