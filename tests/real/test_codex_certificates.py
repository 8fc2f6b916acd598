"""A real Codex with a few certificate authorities instead of the system's: what it trusts, and what happens when they
are too few.

The bridge runs in a mount namespace of its own, where api.openai.com is this machine, and where the system's bundle has
one more authority, which vouches for the provider.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from certificates import Authority, make_authority
from harness import KEY, ROOT, RunningBridge
from real import codex_binaries
from real.provider import DEFAULT_TEXT, Provider
from real.rig import CURRENT, LEGACY, NEWEST, RESPONSES, TEXT_HISTORY, Target, start_rig
from server.prompted import wait_for

from bridge.appserver.roots import find_bundle

HOST = "api.openai.com"
TARGETS = (LEGACY, TEXT_HISTORY, CURRENT, NEWEST)
SYSTEM_PATHS = Path("/etc/hosts"), find_bundle() or Path("/nonexistent")
"""What the namespace has in place of the machine's own."""
WARNING = re.compile(
    r"WARNING bridge\.launch: Codex cannot verify its provider .*api\.openai\.com: unable to get local"
)


def can_unshare() -> bool:
    """Whether this user may have a mount namespace, and there is a bundle to replace."""
    if shutil.which("unshare") is None or not SYSTEM_PATHS[1].is_file():
        return False
    tried = ["unshare", "-rm", "mount", "--bind", "/etc/hosts", "/etc/hosts"]
    return subprocess.run(tried, check=False, capture_output=True).returncode == 0


needs_namespace = pytest.mark.skipif(not can_unshare(), reason="no mount namespaces, or no bundle, on this machine")


@contextmanager
def secured(directory: Path, target: Target, authority: Authority) -> Iterator[tuple[RunningBridge, Provider]]:
    """A bridge whose Codex finds its provider at api.openai.com, over TLS."""
    binary = codex_binaries.find(target.version)
    if isinstance(binary, str):
        pytest.skip(binary)
    hosts, bundle = directory / "hosts", directory / "bundle.pem"
    hosts.write_text(f"127.0.0.1 localhost {HOST}\n")
    bundle.write_text(SYSTEM_PATHS[1].read_text() + authority.certificate.read_text())
    mounts = " && ".join(
        f'mount --bind "{ours}" "{path.resolve()}"' for ours, path in zip((hosts, bundle), SYSTEM_PATHS, strict=True)
    )
    with Provider(authority.server(HOST)) as provider:
        home = directory / "codex"
        home.mkdir()
        (home / "config.toml").write_text(
            'model = "house-model"\nmodel_provider = "house"\n[features]\nplugins = false\n[model_providers.house]\n'
            f'name = "house"\nbase_url = "https://{HOST}:{provider.port}/v1"\nwire_api = "responses"\n'
            "request_max_retries = 0\nstream_max_retries = 0\n"
        )
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "XDG_STATE_HOME": str(directory / "state"),
            "PROXY_CODEX_WORKDIR": str(directory / "work"),
            "PROXY_API_KEY": KEY,
            "PORT": "0",
            "CODEX_BIN": str(binary),
            "CODEX_HOME": str(home),
            "PROXY_DIALECT": target.dialect,
        }
        stderr = directory / "bridge-stderr.txt"
        # A process of its own: the harness's fork server is in the machine's namespace.
        inside = ["sh", "-c", f'{mounts} && exec "$@"', "sh", sys.executable, "-m", "bridge", "serve"]
        with (
            stderr.open("w") as errors,
            subprocess.Popen(
                ["unshare", "-rm", *inside], stdout=subprocess.PIPE, stderr=errors, env=env, cwd=ROOT, text=True
            ) as process,
        ):
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert line.startswith("listening on "), line + stderr.read_text()
                yield RunningBridge(line.split()[-1], process, directory / "state", stderr), provider
                process.terminate()
                assert process.wait(30) == 0, stderr.read_text()
            finally:
                process.kill()


def certificates_of(bridge: RunningBridge) -> str | None:
    """The file of authorities that the child was started with; None: the system's."""
    children = Path(f"/proc/{bridge.process.pid}/task/{bridge.process.pid}/children").read_text().split()
    (child,) = children
    found = re.search(rb"(?:^|\0)SSL_CERT_FILE=([^\0]+)", Path(f"/proc/{child}/environ").read_bytes())
    return found[1].decode() if found else None


BODY = RESPONSES.body("hello")


@needs_namespace
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_provider_whose_root_is_in_the_small_file(tmp_path: Path, target: Target) -> None:
    """Codex verifies it with that file alone."""
    with secured(tmp_path, target, make_authority(tmp_path / "authority", "GTS Root R4")) as (bridge, _):
        response = bridge.post("/responses", BODY)
        assert RESPONSES.read(response.json())["text"] == DEFAULT_TEXT
        given = certificates_of(bridge)
        assert given is not None
        assert given.endswith("/roots.pem")
        assert 1 < Path(given).read_text().count("BEGIN CERTIFICATE") < 30
        assert "WARNING bridge.launch" not in bridge.stderr.read_text()


@needs_namespace
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_provider_whose_root_is_not_in_the_small_file(tmp_path: Path, target: Target) -> None:
    """One turn fails, in a way that clients retry; from then on Codex has the system's certificates."""
    with secured(tmp_path, target, make_authority(tmp_path / "authority", "House Root")) as (bridge, provider):
        response = bridge.post("/responses", BODY)
        assert response.status_code in (502, 503), response.text
        assert response.headers.get("x-should-retry") != "false"
        assert provider.requests == []
        # Codex 0.107 ends the turn by itself, before the bridge has found out why.
        wait_for(lambda: WARNING.search(bridge.stderr.read_text()) is not None, "the bridge has said why")
        wait_for(lambda: "child ready" in bridge.stderr.read_text().partition("restarting it")[2], "the next child")
        for _ in range(2):
            response = bridge.post("/responses", BODY)
            assert RESPONSES.read(response.json())["text"] == DEFAULT_TEXT
        assert certificates_of(bridge) is None
        assert len(re.findall("WARNING bridge.launch", bridge.stderr.read_text())) == 1


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_certificates_of_the_user_s_own(tmp_path: Path, target: Target) -> None:
    """SSL_CERT_FILE reaches Codex as it is, and Codex verifies a provider with it that no other file would."""
    authority = make_authority(tmp_path / "authority", "House Root")
    with Provider(authority.server("127.0.0.1")) as provider:
        home = tmp_path / "own"
        home.mkdir()
        (home / "config.toml").write_text(
            'model = "house-model"\nmodel_provider = "house"\n[model_providers.house]\nname = "house"\n'
            f'base_url = "https://127.0.0.1:{provider.port}/v1"\nwire_api = "responses"\n[features]\nplugins = false\n'
        )
        own = str(authority.certificate)
        with start_rig(tmp_path, target, CODEX_HOME=str(home), SSL_CERT_FILE=own) as rig:
            assert rig.ask(RESPONSES, "hello").text == DEFAULT_TEXT
            assert f"SSL_CERT_FILE={own}\0".encode() in Path(f"/proc/{rig.child()}/environ").read_bytes()
