"""Which certificate authorities the child gets, and when it keeps the system's."""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest
import trio
from appserver.test_launch import launcher, program
from certificates import Authority, make_authority

from bridge.appserver.codex_home import SYSTEM_CONFIG, CodexHome, read_codex_home
from bridge.appserver.roots import Roots, Server, find_bundle, find_untrusted, prepare_roots, read_bundle, tls_servers

OPENAI = frozenset({("api.openai.com", 443), ("chatgpt.com", 443), ("auth.openai.com", 443)})
LOCAL = 'model_provider = "house"\n[model_providers.house]\nbase_url = "http://127.0.0.1:8000/v1"\n'

pytestmark = pytest.mark.skipif(
    any(SYSTEM_CONFIG.parent.glob("*.toml")), reason="an administrator configures Codex on this machine"
)


def home_of(directory: Path, config: str | None, *, login: bool = False) -> CodexHome:
    """A CODEX_HOME with this config.toml."""
    path = directory / "home"
    path.mkdir(exist_ok=True)
    if config is not None:
        (path / "config.toml").write_text(config)
    if login:
        (path / "auth.json").write_text("{}")
    return read_codex_home(path)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Authority]:
    """One that OpenAI's servers may use, and an unknown one."""
    directory = tmp_path_factory.mktemp("authorities")
    return {name: make_authority(directory / name.replace(" ", "-"), name) for name in ("GTS Root R4", "House Root")}


@pytest.fixture
def bundle(authorities: dict[str, Authority], tmp_path: Path) -> Path:
    """A system's bundle with both of them, the unknown one first."""
    path = tmp_path / "bundle.pem"
    path.write_text("".join(authorities[name].certificate.read_text() for name in ("House Root", "GTS Root R4")))
    return path


def names_in(path: Path) -> list[str]:
    """The common names of the authorities in a file."""
    return [name for names, _ in read_bundle(path) for name in names]


# The servers


@pytest.mark.parametrize(
    ("config", "servers"),
    [
        (None, OPENAI),
        ('model = "gpt-5.2"', OPENAI),
        (LOCAL, set()),
        (LOCAL.replace("127.0.0.1", "localhost"), set()),
        (LOCAL.replace("127.0.0.1", "[::1]"), set()),
        (LOCAL.replace("127.0.0.1", "192.168.1.5"), set()),
        ('model_provider = "oss"', set()),
        (LOCAL + '[model_providers.cloud]\nbase_url = "https://eu.api.openai.com/v1"', {("eu.api.openai.com", 443)}),
        (LOCAL + '[model_providers.cloud]\nbase_url = "https://chatgpt.com:8443/"', {("chatgpt.com", 8443)}),
        (LOCAL + '[model_providers.cloud]\nname = "OpenAI"', OPENAI),
        ('openai_base_url = "http://127.0.0.1:8000/v1"', OPENAI),
    ],
)
def test_the_servers_of_a_configuration(tmp_path: Path, config: str | None, servers: set[tuple[str, int]]) -> None:
    """All that a client may choose, not only the default one; plain HTTP on this machine or network needs none."""
    assert tls_servers(home_of(tmp_path, config)) == frozenset(servers)


def test_a_login_needs_openai_s_servers(tmp_path: Path) -> None:
    """Codex refreshes it there, whatever the provider is."""
    assert tls_servers(home_of(tmp_path, LOCAL, login=True)) == OPENAI


@pytest.mark.parametrize(
    "config",
    [
        LOCAL.replace("http://127.0.0.1:8000", "https://gateway.example"),
        LOCAL.replace("http://127.0.0.1:8000", "https://127.0.0.1:8000"),
        LOCAL.replace("http://127.0.0.1:8000", "http://gateway.example"),
        LOCAL.replace("http://127.0.0.1:8000", "https://openai.com.example"),
        LOCAL.replace("http://127.0.0.1:8000", "https://notopenai.com"),
        LOCAL.replace("http://127.0.0.1:8000", "https://api.openai.com:port"),
        LOCAL + '[model_providers.cloud]\nbase_url = "https://gateway.example/v1"',
        LOCAL + 'auth = { command = "get-token" }',
        LOCAL + "[features]\nrespect_system_proxy = true",
        'model_provider = "amazon-bedrock"',
        'openai_base_url = "https://gateway.example/v1"',
        'chatgpt_base_url = "https://gateway.example/v1"',
        "model_providers = 1",
        "model = [",
    ],
)
def test_unknown_servers_keep_the_system_s_certificates(tmp_path: Path, config: str, bundle: Path) -> None:
    """Also where only one of the providers is unknown, because a client may choose it."""
    home = home_of(tmp_path, config)
    assert tls_servers(home) is None
    assert prepare_roots(home, tmp_path, {}, bundle) is None


# What the user has set


@pytest.mark.parametrize(
    "name",
    ["SSL_CERT_FILE", "SSL_CERT_DIR", "CODEX_CA_CERTIFICATE", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "HTTP_PROXY"],
)
@pytest.mark.parametrize("in_file", [False, True], ids=["environment", "dotenv"])
def test_the_user_s_certificates_and_proxies_are_respected(
    tmp_path: Path, bundle: Path, name: str, in_file: bool
) -> None:
    """In the bridge's environment, and in the .env file that Codex reads."""
    home = home_of(tmp_path, LOCAL)
    assert prepare_roots(home, tmp_path, {"NO_PROXY": "localhost", name: ""}, bundle) is not None
    if in_file:
        (home.path / ".env").write_text(f"KEY=1\n export {name} = /somewhere\n")
    assert prepare_roots(home, tmp_path, {} if in_file else {name: "/somewhere"}, bundle) is None


# The file


def test_the_file_has_the_roots_that_the_servers_need(tmp_path: Path, bundle: Path) -> None:
    """By name, from the system's bundle; readable by this user only."""
    roots = prepare_roots(home_of(tmp_path, None), tmp_path, {}, bundle)
    assert roots is not None
    assert names_in(roots.path) == ["GTS Root R4"]
    assert stat.S_IMODE(roots.path.stat().st_mode) == 0o600


def test_a_provider_without_tls_gets_one_certificate(tmp_path: Path, bundle: Path) -> None:
    """Any one: nothing is verified with it."""
    roots = prepare_roots(home_of(tmp_path, LOCAL), tmp_path, {}, bundle)
    assert roots is not None
    assert names_in(roots.path) == ["House Root"]


def test_the_file_is_made_again_when_the_bundle_or_the_configuration_changes(
    tmp_path: Path, bundle: Path, authorities: dict[str, Authority]
) -> None:
    """And left alone as long as neither does."""
    roots = prepare_roots(home_of(tmp_path, None), tmp_path, {}, bundle)
    assert roots is not None
    first = roots.path.stat().st_ino
    assert prepare_roots(home_of(tmp_path, None), tmp_path, {}, bundle) == roots
    assert roots.path.stat().st_ino == first
    bundle.write_text(authorities["GTS Root R4"].certificate.read_text() * 2)
    prepare_roots(home_of(tmp_path, None), tmp_path, {}, bundle)
    assert roots.path.stat().st_ino != first
    bundle.write_text(authorities["House Root"].certificate.read_text())
    prepare_roots(home_of(tmp_path, LOCAL), tmp_path, {}, bundle)
    assert names_in(roots.path) == ["House Root"]


@pytest.mark.parametrize("text", [None, "", "not a certificate"])
def test_without_a_usable_bundle_nothing_changes(tmp_path: Path, text: str | None) -> None:
    """A missing one, an empty one, a broken one; or none of its roots is known."""
    path = tmp_path / "bundle.pem"
    if text is not None:
        path.write_text(text)
    assert prepare_roots(home_of(tmp_path, LOCAL), tmp_path, {}, path) is None
    assert prepare_roots(home_of(tmp_path, LOCAL), tmp_path, {}, None) is None


def test_a_bundle_without_the_known_roots_is_not_cut(tmp_path: Path, authorities: dict[str, Authority]) -> None:
    """With an empty file the child would trust no server."""
    house = authorities["House Root"].certificate
    assert prepare_roots(home_of(tmp_path, None), tmp_path, {}, house) is None


# The launcher


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variables of the machine that runs the tests."""
    for name in list(os.environ):
        if name.startswith("SSL_CERT") or name.upper().endswith("_PROXY") or name == "CODEX_CA_CERTIFICATE":
            monkeypatch.delenv(name)


@pytest.mark.usefixtures("clean_environment")
@pytest.mark.skipif(find_bundle() is None, reason="no bundle of certificates on this machine")
@pytest.mark.parametrize(
    ("options", "given"), [({}, True), ({"small_roots": False}, False), ({"native_tools": True}, False)]
)
async def test_the_child_gets_the_file(tmp_path: Path, options: dict[str, Any], given: bool) -> None:
    """Unless it is switched off, or Codex may start commands, which would get it, too."""
    home_of(tmp_path, LOCAL)
    command = await launcher(tmp_path, program(tmp_path / "codex", "exit"), **options).command()
    assert ("SSL_CERT_FILE" in command.env) == given
    if given:
        path = Path(command.env["SSL_CERT_FILE"])
        assert path.is_relative_to(tmp_path / "state")
        assert len(names_in(path)) > 0
        assert path.read_text().count("BEGIN CERTIFICATE") == 1


# The check


async def serve_tls(context: ssl.SSLContext, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
    """A TLS server on this machine; gives its port."""

    async def shake_hands(stream: trio.SSLStream[trio.SocketStream]) -> None:
        try:
            await stream.do_handshake()
        except trio.BrokenResourceError:
            return

    (listener,) = await trio.open_ssl_over_tcp_listeners(0, context, host="127.0.0.1")
    assert isinstance(listener.transport_listener, trio.SocketListener)
    port = listener.transport_listener.socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, shake_hands, [listener])
        task_status.started(port)


async def test_a_server_with_another_root_is_found(authorities: dict[str, Authority], tmp_path: Path) -> None:
    """It is named with the reason. One that verifies, or cannot be reached, proves nothing."""
    known, house = authorities["GTS Root R4"], authorities["House Root"]
    async with trio.open_nursery() as nursery:
        trusted = await nursery.start(serve_tls, known.server("127.0.0.1"))
        untrusted = await nursery.start(serve_tls, house.server("127.0.0.1"))
        with trio.socket.socket() as unused:
            await unused.bind(("127.0.0.1", 0))
            refusing = unused.getsockname()[1]

            async def check(path: Path, *ports: int) -> str | None:
                return await find_untrusted(Roots(path, frozenset(Server("127.0.0.1", port) for port in ports)))

            assert await check(known.certificate, trusted, refusing) is None
            found = await check(known.certificate, trusted, untrusted, refusing)
            assert found is not None
            assert "127.0.0.1: unable to get local issuer certificate" in found
            missing = await check(tmp_path / "missing.pem", trusted)
            assert missing is not None
            assert "cannot be read" in missing
        nursery.cancel_scope.cancel()
