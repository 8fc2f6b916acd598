"""The configuration file: valid content, precedence, and how each mistake is reported."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from harness import ROOT
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import ConfigError
from bridge.protocols.chat.presets import PRESETS
from bridge.routing.setup import plan_backends
from bridge.settings import Settings
from bridge.settings.file import (
    MAX_FILE,
    BackendConfig,
    FileConfig,
    RoutingConfig,
    line_of,
    load_configuration,
    read_config,
)

TEMPLATE = ROOT / "docs" / "config.toml"
SECRET = "canary-secret"


def written(directory: Path, content: str | bytes) -> Path:
    """A configuration file with this content."""
    path = directory / "bridge.toml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refused(path: Path) -> list[str]:
    """The error lines for a file, without its path; they contain no secret."""
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert SECRET not in f"{caught.value!r} {caught.value.body()}"
    lines = caught.value.message.splitlines()
    assert all(line.startswith(f"{path}:") for line in lines), lines
    return [line.removeprefix(f"{path}:").strip() for line in lines]


# Valid files


def test_the_template_is_valid_and_explains_every_key() -> None:
    """Each key of a backend has a line of its own in the list, each type and preset a word."""
    config = read_config(TEMPLATE)
    assert {plan.name for plan in plan_backends(config, {}, Path("/nowhere"))} >= set(config.backends)
    comments = [line for line in TEMPLATE.read_text().splitlines() if line.startswith("#")]
    for key in BackendConfig.model_fields:
        alone = [line for line in comments if re.search(rf"^#   {key}\s|\b{key} = ", line)]
        assert alone, key
    text = TEMPLATE.read_text()
    for key in RoutingConfig.model_fields:
        assert re.search(rf"^(\[routing\.{key}\]|{key} = )", text, re.MULTILINE), key
    for key in FileConfig.model_fields:
        assert re.search(rf"^\[{key}\b", text, re.MULTILINE), key
    for word in (*get_args(BackendConfig.model_fields["type"].annotation), *PRESETS):
        assert re.search(rf"\b{word}\b", "\n".join(comments)), word
    for line in re.findall(r"^# (\w+) = .*$", text, re.MULTILINE):
        assert line in Settings.model_fields


def test_all_spellings_of_toml_mean_the_same(tmp_path: Path) -> None:
    """Tables, dotted and quoted keys, inline tables; blank lines, comments and either end of line."""
    spellings = (
        '[backends.a]\ntype = "anthropic"\nheaders = { x = "1" }\n',
        '[backends]\na = { type = "anthropic", headers = { x = "1" } }\n',
        'backends.a.type = "anthropic"\nbackends.a.headers.x = "1"\n',
        '[ "backends" . \'a\' ] # here\r\n"type" = \'anthropic\'\r\n[backends.a.headers]\r\nx = """1"""\r\n',
    )
    configs = [read_config(written(tmp_path, text)) for text in spellings]
    assert configs == [configs[0]] * len(spellings)
    assert configs[0].backends["a"].headers == {"x": "1"}


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    """So does one of comments alone."""
    assert read_config(written(tmp_path, "")) == read_config(written(tmp_path, "# nothing")) == FileConfig()


@pytest.mark.parametrize("number", ["120", "0.5", "inf"])
def test_a_timeout_is_any_number_above_zero(tmp_path: Path, number: str) -> None:
    """Whole or not."""
    text = f'[backends.a]\ntype = "codex"\ntimeout = {number}\n'
    assert read_config(written(tmp_path, text)).backends["a"].timeout == float(number)


# Precedence


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    """An empty variable and a flag that was not given count as nothing."""
    path = written(tmp_path, "[settings]\nport = 1\nworkers = 2\ngrace = 3\n")

    def values(environment: dict[str, str], **flags: Any) -> tuple[int, int, float]:
        settings, _ = load_configuration({"PROXY_CONFIG": str(path), **environment}, **flags)
        return settings.port, settings.workers, settings.grace

    assert (Settings().port, Settings().workers, Settings().grace) == (11435, 1, 20)
    assert values({}) == (1, 2, 3)
    assert values({"PORT": "11", "PROXY_WORKERS": ""}) == (11, 2, 3)
    assert values({"PORT": "11"}, port=21, workers=22, grace=None) == (21, 22, 3)
    assert values({}, port=0) == (0, 2, 3)


def test_the_flag_names_another_file_than_the_environment(tmp_path: Path) -> None:
    """--config wins; an empty PROXY_CONFIG is none."""
    path = written(tmp_path, "[settings]\nport = 1\n")
    missing = str(tmp_path / "none.toml")
    assert load_configuration({"PROXY_CONFIG": missing}, config=path)[0].port == 1
    assert load_configuration({"PROXY_CONFIG": str(path)})[0].config == path
    assert load_configuration({"PROXY_CONFIG": ""})[0].port == 11435
    with pytest.raises(ConfigError, match=re.escape(missing)):
        load_configuration({"PROXY_CONFIG": missing})


def test_a_mistake_in_the_environment_names_the_variable_and_not_the_file(tmp_path: Path) -> None:
    """The file is right."""
    path = written(tmp_path, "[settings]\nport = 1\n")
    with pytest.raises(ConfigError) as caught:
        load_configuration({"PROXY_CONFIG": str(path), "PORT": "many"})
    assert caught.value.message.startswith("PORT=many: ")


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ('models = ["a", "b"]', "models", ("a", "b")),
        ('models = "a, b"', "models", ("a", "b")),
        ('aliases = { fast = "a" }', "aliases", {"fast": "a"}),
        ('api_keys = ["k1", "k2"]', "api_keys", ("k1", "k2")),
        ('web_search = "cached"', "web_search", "cached"),
        ("mock_only = true", "mock_only", True),
        ('codex_home = "/x"', "codex_home", Path("/x")),
    ],
)
def test_settings_have_the_names_of_their_flags(tmp_path: Path, line: str, name: str, value: Any) -> None:
    """Lists and tables as TOML writes them, or as a variable would."""
    settings, _ = load_configuration({}, config=written(tmp_path, f"[settings]\n{line}\n"))
    assert getattr(settings, name) == value


# Mistakes

A = '[backends.a]\ntype = "openai"\n'
URL = f'{A}base_url = "https://x/v1"\n'
KEY = f'key = "{SECRET}"\n'

MISTAKES: dict[str, tuple[str, str]] = {
    # Unknown keys
    "unknown_key_at_the_top": ("x = 1\n", "1: x: unknown key"),
    "unknown_key_of_a_backend": (f'{URL}keyenv = "A"\n', "4: backends.a.keyenv: unknown key"),
    "unknown_key_of_routing": ("[routing]\n# so\nbackup = 1\n", "3: routing.backup: unknown key"),
    "unknown_setting": ("[settings]\nprot = 1\n", "2: settings.prot: unknown setting"),
    "variable_as_setting": ("[settings]\nPORT = 1\n", "2: settings.PORT: unknown setting"),
    "the_file_itself": ('[settings]\nconfig = "x"\n', "2: settings.config: unknown setting"),
    "unknown_key_inline": ('[backends]\na = { type = "mock", x = 1 }\n', "2: backends.a.x: unknown key"),
    "unknown_key_dotted": ('backends.a.type = "mock"\nbackends.a.x = 1\n', "2: backends.a.x: unknown key"),
    "unknown_key_quoted": ('["backends"."a"]\n"type" = "mock"\n\'x\' = 1\n', "3: backends.a.x: unknown key"),
    # Types
    "no_type": ('[backends.a]\nbase_url = "https://x"\n', "1: backends.a.type: "),
    "unknown_type": ('[backends.a]\ntype = "claude"\n', "2: backends.a.type: Input should be 'app-server', 'codex'"),
    "type_is_a_number": ("[backends.a]\ntype = 1\n", "2: backends.a.type: "),
    "backends_is_a_list": ("backends = [1]\n", "1: backends: "),
    "backends_is_a_text": ('\n\nbackends = "x"\n', "3: backends: "),
    "a_backend_is_a_text": ('[backends]\na = "mock"\n', "2: backends.a: "),
    "a_backend_is_a_list": ('[[backends.a]]\ntype = "mock"\n', "1: backends.a: "),
    "routing_is_a_list": ('[[routing]]\ndefault = "mock"\n', "1: routing: "),
    "settings_is_a_number": ("settings = 1\n", "1: settings: "),
    "a_number_as_text": (f'{URL}timeout = "120"\n', "4: backends.a.timeout: "),
    "a_date_as_timeout": (f"{URL}timeout = 2030-01-01\n", "4: backends.a.timeout: "),
    "a_switch_as_timeout": (f"{URL}timeout = true\n", "4: backends.a.timeout: "),
    "no_time": (f"{URL}timeout = 0\n", "4: backends.a.timeout: Input should be greater than 0"),
    "negative_time": (f"{URL}timeout = -1\n", "4: backends.a.timeout: Input should be greater than 0"),
    "not_a_time": (f"{URL}timeout = nan\n", "4: backends.a.timeout: Input should be greater than 0"),
    "a_text_as_switch": (f'{URL}discovery = "yes"\n', "4: backends.a.discovery: "),
    "a_number_as_switch": (f"{URL}discovery = 1\n", "4: backends.a.discovery: "),
    "one_model": (f'{URL}models = "m"\n', "4: backends.a.models: "),
    "a_number_as_model": (f'{URL}models = [\n  "m",\n  1,\n]\n', "4: backends.a.models.1: "),
    "headers_as_list": (f'{URL}headers = ["x: 1"]\n', "4: backends.a.headers: "),
    "a_number_as_header": (f"{URL}headers = {{ x = 1 }}\n", "4: backends.a.headers.x: "),
    # Names
    "name_with_a_blank": (
        '[backends."a b"]\ntype = "mock"\n',
        "1: backends: 'a b': a backend's name consists",
    ),
    "no_name": ('[backends.""]\ntype = "mock"\n', "1: backends: '': a backend's name"),
    "two_app_servers": (
        '[backends.a]\ntype = "app-server"\n[backends.b]\ntype = "app-server"\n',
        "1: backends: only one backend can have the type app-server; use --workers",
    ),
    # URLs
    "no_base_url": (A, "1: backends.a: base_url: required for a backend of type openai"),
    "no_base_url_of_responses": (
        '[backends.a]\ntype = "responses"\n',
        "1: backends.a: base_url: required for",
    ),
    "http_elsewhere": (
        f'{A}base_url = "http://example.com/v1"\n',
        "3: backends.a.base_url: plain http is only allowed for this machine; use https, or set insecure_http = true",
    ),
    "http_elsewhere_for_a_login": (
        '[backends.a]\ntype = "anthropic"\ncredentials = "c"\nbase_url = "http://x"\ninsecure_http = true\n',
        "1: backends.a: insecure_http: a login is not sent over plain http",
    ),
    "http_elsewhere_for_codex": (
        '[backends.a]\ntype = "codex"\nbase_url = "http://x"\n',
        "3: backends.a.base_url: plain http is only allowed for this machine; use https",
    ),
    "insecure_as_text": (f'{A}base_url = "http://x"\ninsecure_http = "yes"\n', "4: backends.a.insecure_http: "),
    "no_scheme": (f'{A}base_url = "example.com/v1"\n', "3: backends.a.base_url: write it as https://host/path"),
    "another_scheme": (f'{A}base_url = "file:///etc/passwd"\n', "3: backends.a.base_url: write it as https://"),
    "no_host": (f'{A}base_url = "https:///v1"\n', "3: backends.a.base_url: write it as https://host/path"),
    "bad_port": (f'{A}base_url = "https://x:99999/v1"\n', "3: backends.a.base_url: write it as https://host/path"),
    "empty_url": (f'{A}base_url = ""\n', "3: backends.a.base_url: write it as https://host/path"),
    "login_in_the_url": (
        f'{A}base_url = "https://u:{SECRET}@x/v1"\n',
        "3: backends.a.base_url: must not contain a user name, a query",
    ),
    "query_in_the_url": (
        f'{A}base_url = "https://x/v1?key={SECRET}"\n',
        "3: backends.a.base_url: must not contain a user name, a query",
    ),
    "a_line_in_the_url": (f'{A}base_url = "https://x/\\nv1"\n', "3: backends.a.base_url: write it as https://host"),
    "token_url_elsewhere": (
        '[backends.a]\ntype = "anthropic"\ncredentials = "c"\ntoken_url = "http://x/t"\n',
        "4: backends.a.token_url: plain http is only allowed for this machine; use https",
    ),
    # Keys
    "two_keys": (f'{URL}{KEY}key_env = "A"\n', "1: backends.a: key and key_env: use only one of them"),
    "two_logins": (
        f'[backends.a]\ntype = "anthropic"\n{KEY}credentials = "c"\n',
        "1: backends.a: key and credentials: use only one of them",
    ),
    "key_for_the_mock": (
        f'[backends.a]\ntype = "mock"\n{KEY}',
        "3: backends.a.key: a backend of type mock does not use",
    ),
    "key_for_the_app_server": (
        '[backends.a]\ntype = "app-server"\nkey_env = "A"\n',
        "3: backends.a.key_env: a backend of type app-server does not use it",
    ),
    "credentials_elsewhere": (
        f'{URL}credentials = "c"\n',
        "4: backends.a.credentials: a backend of type openai does not use it",
    ),
    "blank_in_the_key": (f'{URL}key = "{SECRET} x"\n', "4: backends.a.key: must contain only visible ASCII characters"),
    "line_in_the_key": (f'{URL}key = "{SECRET}\\n"\n', "4: backends.a.key: must contain only visible ASCII characters"),
    "empty_key": (f'{URL}key = ""\n', "4: backends.a.key: must contain only visible ASCII characters"),
    "number_as_key": (f"{URL}key = 12345\n", "4: backends.a.key: "),
    # Headers
    "header_with_a_blank": (f'{URL}headers = {{ "a b" = "x" }}\n', "4: backends.a.headers: 'a b' cannot be set"),
    "header_with_a_colon": (f'{URL}headers = {{ "a:" = "x" }}\n', "4: backends.a.headers: 'a:' cannot be set"),
    "header_without_a_name": (f'{URL}headers = {{ "" = "x" }}\n', "4: backends.a.headers: '' cannot be set"),
    "header_with_a_line": (f'{URL}headers = {{ "a\\nb" = "x" }}\n', "4: backends.a.headers: 'a\\nb' cannot be set"),
    "header_of_ours": (f'{URL}[backends.a.headers]\nHost = "x"\n', "4: backends.a.headers: 'Host' cannot be set"),
    "header_value_with_a_line": (
        f'{URL}headers = {{ x-a = "{SECRET}\\r\\nx: y" }}\n',
        "4: backends.a.headers: the value of x-a must contain only visible ASCII characters",
    ),
    "header_value_not_ascii": (
        f'{URL}headers = {{ x-a = "{SECRET}é" }}\n',
        "4: backends.a.headers: the value of x-a must contain",
    ),
    # Routing
    "unknown_default": (
        f'{URL}[routing]\ndefault = "b"\n',
        "5: routing.default: unknown backend 'b'; choose one of a, app-server, mock",
    ),
    "unknown_in_patterns": (
        f'{URL}[routing.patterns]\na = ["x"]\nb = ["y"]\n',
        "6: routing.patterns.b: unknown backend 'b'; choose one of a, app-server, mock",
    ),
    "empty_pattern": ('[routing.patterns]\nmock = ["a", ""]\n', "1: routing.patterns: an empty pattern matches"),
    "pattern_as_text": ('[routing.patterns]\nmock = "a"\n', "2: routing.patterns.mock: "),
    "pattern_as_number": ("[routing.patterns]\nmock = [1]\n", "2: routing.patterns.mock.0: "),
    "alias_of_a_number": ("[routing.aliases]\nfast = 1\n", "2: routing.aliases.fast: "),
    "alias_of_a_list": ('[routing.aliases]\nfast = ["a"]\n', "2: routing.aliases.fast: "),
    # Settings
    "port_too_high": ("[settings]\nport = 99999\n", "2: settings.port: use a whole number from 0 to 65535"),
    "port_is_a_word": (f'[settings]\nport = "{SECRET}"\n', "2: settings.port: "),
    "port_is_a_table": ("[settings.port]\na = 1\n", "1: settings.port: "),
    "unknown_word": ('[settings]\n\nweb_search = "on"\n', "3: settings.web_search: choose one of off, cached, live"),
    "empty_api_key": (
        f'[settings]\napi_keys = ["{SECRET}", ""]\n',
        "2: settings.api_keys: an API key must not be empty",
    ),
    "any_origin": (
        '[settings]\nallowed_origins = ["*"]\n',
        "2: settings.allowed_origins: * would allow every web",
    ),
    "alias_without_target": ('[settings]\naliases = "fast"\n', "2: settings.aliases: write it as alias=model"),
    "user_without_name": (
        '[settings]\ncap_users = "ada"\n',
        "2: settings.cap_users: write it as key-0123456789ab=user",
    ),
    "agent_without_model": ('[settings]\ncap_agents = "a="\n', "2: settings.cap_agents: write it as agent=model"),
    "settings_url": ('[settings]\ncodex_base_url = "http://x"\n', "2: settings.codex_base_url: plain http is only"),
    "endless_number": (f"[settings]\ngrace = 1{'0' * 400}\n", "2: settings.grace: "),
    # TOML itself
    "twice": ("a = 1\na = 2\n", "2:6: cannot overwrite a value"),
    "table_twice": (
        '[backends.a]\ntype = "mock"\n[backends.a]\n',
        "3:12: cannot declare ('backends', 'a') twice",
    ),
    "no_value": ('[backends.a]\ntype = "mock"\ntimeout =\n', "3:10: invalid value"),
    "no_quotes": (f"{URL}key = {SECRET}\n", "4:7: invalid value"),
    "no_end_of_a_text": (f'[routing]\ndefault = "{SECRET}\n', "2:25: illegal character '\\n'"),
    "a_zero_byte": ("[routing]\ndefault = \x00\n", "2:11: invalid value"),
    "not_toml": ('{"backends": {}}\n', "1:1: invalid statement"),
    "no_end_of_the_file": ('[routing]\npatterns = { mock = [\n"a",\n', "4:1: unexpected end of file (invalid value)"),
    "a_number_too_long": (
        f"[settings]\nport = 1{'0' * 5000}\n",
        "2:8: a number must not have more than 4,300 digits",
    ),
    "windows_lines": ("[routing]\r\n\r\ndefault =\r\n", "3:10: invalid value"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_names_file_line_and_key(tmp_path: Path, name: str) -> None:
    """In one line, which does not quote the file."""
    text, told = MISTAKES[name]
    lines = refused(written(tmp_path, text))
    assert len(lines) == 1
    assert told in lines[0]
    assert len(lines[0]) < 200


def test_several_mistakes_have_a_line_each(tmp_path: Path) -> None:
    """One run reports all of them."""
    text = '[backends.a]\ntype = "x"\n[backends.b]\ntype = "mock"\nx = 1\n[routing]\ny = 1\n'
    told = [line.split(": ")[:2] for line in refused(written(tmp_path, text))]
    assert told == [["2", "backends.a.type"], ["5", "backends.b.x"], ["7", "routing.y"]]


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    """From every table, including rules about several keys, in the order of their lines."""
    text = f"""\
[settings]
prot = 1
port = 99999
web_search = "on"
[backends.a]
type = "openai"
base_ur = "https://x/v1"
timeout = "1"
key = "{SECRET}"
key_env = "A"
headers = {{ "a b" = "x", Host = "y" }}
[backends.b]
type = "codex"
discovery = "yes"
[backends.mock]
type = "clude"
[routing]
default = "c"
[routing.patterns]
d = ["x", ""]
[routing.aliases]
fast = 1
[tool_modes.model]
"gpt-*" = "native"
"""
    told = refused(written(tmp_path, text))
    assert [line.partition(": ")[2].partition(": ")[0] for line in told] == [
        "settings.prot",
        "settings.port",
        "settings.web_search",
        "backends.a",
        "backends.a",
        "backends.a.base_ur",
        "backends.a.timeout",
        "backends.a.headers",
        "backends.b.discovery",
        "backends.mock",
        "backends.mock.type",
        "routing.default",
        "routing.patterns",
        "routing.patterns.d",
        "routing.aliases.fast",
        "tool_modes.model",
    ]
    lines = [int(line.partition(":")[0]) for line in told]
    assert lines == [2, 3, 4, 5, 5, 7, 8, 11, 14, 15, 16, 18, 19, 20, 22, 23]
    assert "'a b' cannot be set as a header; 'Host' cannot" in told[7]
    for line, near in ((told[0], "port"), (told[5], "base_url"), (told[15], "models")):
        assert line.endswith(f"; did you mean {near}?")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """It is missing, a directory, not text, or far too large; an endless one is not read to its end."""
    assert refused(tmp_path / "none.toml") == ["No such file or directory"]
    assert refused(tmp_path) == ["Is a directory"]
    assert refused(written(tmp_path, b'[routing]\ndefault = "\xff"\n')) == ["2:12: not UTF-8"]
    assert refused(written(tmp_path, "# caf\u00e9".encode("utf-16"))) == ["1:1: not UTF-8"]
    assert refused(written(tmp_path, b"#" * (MAX_FILE + 1))) == ["larger than 1,048,576 bytes"]
    assert refused(Path("/dev/zero")) == ["larger than 1,048,576 bytes"]
    assert read_config(written(tmp_path, b"#" * MAX_FILE)) == FileConfig()


def test_secrets_do_not_show(tmp_path: Path) -> None:
    """Neither keys nor headers, which may hold one."""
    text = f'{URL}{KEY}headers = {{ x-a = "{SECRET}" }}\n'
    config = read_config(written(tmp_path, text))
    assert config.backends["a"].key == SECRET
    for shown in (repr(config), str(config), repr(config.backends), str(config.backends["a"])):
        assert SECRET not in shown


def test_the_keys_of_the_settings_do_not_show(tmp_path: Path) -> None:
    """They are secrets too."""
    settings, config = load_configuration({}, config=written(tmp_path, f'[settings]\napi_keys = ["{SECRET}"]\n'))
    assert settings.api_keys == (SECRET,)
    assert SECRET not in repr(settings)
    assert SECRET not in repr(config)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"[settings]\nport = 1{'0' * 5000}\n", id="more digits than Python reads"),
        pytest.param(f"{URL}timeout = 1{'0' * 400}\n", id="a timeout beyond all floats"),
        pytest.param(f"a = {'[' * 20_000}\n", id="nested too deep"),
    ],
)
def test_odd_content_is_a_mistake_and_not_a_traceback(tmp_path: Path, text: str) -> None:
    """Whatever the file contains, the error is one line."""
    assert len(refused(written(tmp_path, text))) == 1


@pytest.mark.parametrize(
    "text", ['[settings]\nworkdir = "a\\u0000b"\n', '[backends.a]\ntype = "anthropic"\ncredentials = "a\\u0000b"\n']
)
def test_a_path_holds_no_zero_byte(tmp_path: Path, text: str) -> None:
    """The environment cannot hold one, but a file can; the system refuses it with another kind of error."""
    assert len(refused(written(tmp_path, text))) == 1


@pytest.mark.parametrize("odd", ["\u2028", "\u0085", "\u2029"])
def test_lines_are_counted_as_an_editor_does(tmp_path: Path, odd: str) -> None:
    """Other separators of Unicode do not end a line of TOML."""
    text = f'# a{odd}b\n[backends.a]\ntype = "mock"\nx = 1\n'
    assert refused(written(tmp_path, text))[0].startswith("4: ")


@pytest.mark.parametrize(
    "text",
    [
        f'{A}preset = "grok"\n',
        '[backends.a]\ntype = "responses"\npreset = "groq"\n',
        '[backends.a]\ntype = "anthropic"\npreset = "groq"\n',
    ],
)
def test_a_wrong_preset_names_file_line_and_key(tmp_path: Path, text: str) -> None:
    """Like every other mistake: an unknown preset, and a preset for a type that has none."""
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        plan_backends(read_config(path), {}, tmp_path)
    assert caught.value.message.startswith(f"{path}:3: backends.a.preset: ")


@pytest.mark.parametrize(
    "lines",
    [
        f'type = "codex"\n{KEY}',
        'type = "codex"\nkey_env = "SOME_KEY"',
        'type = "codex"\nheaders = { x = "1" }',
        'type = "codex"\ndiscovery = true',
        pytest.param('type = "app-server"\nbase_url = "https://x"'),
        pytest.param('type = "app-server"\ndiscovery = true'),
        pytest.param('type = "mock"\ntimeout = 1'),
        pytest.param('type = "anthropic"\nkey_env = "A"\ntoken_url = "https://x"'),
        pytest.param('type = "openai"\nbase_url = "https://x"\nkey_env = ""'),
    ],
)
def test_a_key_without_effect_is_a_mistake(tmp_path: Path, lines: str) -> None:
    """A user who gives a codex backend a key would believe that it is used."""
    assert len(refused(written(tmp_path, f"[backends.a]\n{lines}\n"))) == 1


@pytest.mark.parametrize("name", ["mock", "app-server"])
def test_the_names_of_built_in_backends_are_reserved(tmp_path: Path, name: str) -> None:
    """`mock-echo` must never go to a provider."""
    with pytest.raises(ConfigError):
        read_config(written(tmp_path, f'[backends.{name}]\ntype = "openai"\nbase_url = "https://x/v1"\n'))


# Lines

NAMES = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True),
    st.text(st.characters(codec="ascii", exclude_characters="\"'\\]", categories=("L", "N", "P", "Zs")), max_size=8),
)


@st.composite
def files(draw: st.DrawFn) -> tuple[str, dict[tuple[str, ...], int]]:
    """(a file of tables and keys, the line of each of them)."""
    lines: list[str] = []
    where: dict[tuple[str, ...], int] = {}
    tables = draw(st.lists(st.lists(NAMES, min_size=1, max_size=3).map(tuple), max_size=4, unique=True))
    for table in tables:
        lines += draw(st.lists(st.sampled_from(["", "# [a]", "  # x = 1", "\t"]), max_size=2))
        if table in where:
            continue
        lines.append(f"[{_dotted(draw, table)}]{draw(st.sampled_from(['', '  # why', ' ']))}")
        where[table] = len(lines)
        for key in draw(st.lists(NAMES, max_size=4, unique=True)):
            if (*table, key) in where or (*table, key) in {other[: len(table) + 1] for other in tables}:
                continue
            value = draw(st.sampled_from(["1", '"[x]"', "[1, 2]", "{ a = 1 }", "'x = 1'", '"#"']))
            lines.append(f"{draw(st.sampled_from(['', '  ']))}{_dotted(draw, (key,))} = {value}")
            where[*table, key] = len(lines)
    return "\n".join(lines), where


def _dotted(draw: st.DrawFn, names: tuple[str, ...]) -> str:
    between = draw(st.sampled_from([".", " . "]))
    return between.join(name if re.fullmatch("[A-Za-z0-9_-]+", name) else f'"{name}"' for name in names)


@given(files())
def test_the_line_of_every_key_is_found(made: tuple[str, dict[tuple[str, ...], int]]) -> None:
    """And of one that is not there, the line of its table."""
    text, where = made
    tomllib.loads(text)
    for keys, line in where.items():
        assert line_of(text, keys) == line
    for keys, line in where.items():
        if not any(len(other) > len(keys) and other[: len(keys)] == keys for other in where):
            assert line_of(text, [*keys, "surely not there", "0"]) == line


@given(st.text(max_size=200), st.lists(st.text(max_size=5), max_size=4))
def test_a_line_is_always_one_of_the_file(text: str, keys: list[str]) -> None:
    """Whatever the file and the keys are."""
    assert 1 <= line_of(text, keys) <= max(1, len(text.splitlines()))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param('\n\n[backend.claude]\ntype = "mock"\n', 3, id="a table with a wrong name"),
        pytest.param('\n\n[backends."a b"]\ntype = "mock"\n', 3, id="a backend with a wrong name"),
        pytest.param('\n\nbackend.claude.type = "mock"\n', 3, id="dotted"),
    ],
)
def test_a_wrong_name_in_a_heading_is_found(tmp_path: Path, text: str, line: int) -> None:
    """The likeliest mistake of all: `[backend.claude]`."""
    assert refused(written(tmp_path, text))[0].startswith(f"{line}: backend")


@pytest.mark.parametrize("table", ['"a]b"', '"a\\u005db"', "'a]b'"])
def test_a_quoted_table_may_hold_anything(table: str) -> None:
    """The name is checked later; the mistake in it should still be found."""
    text = f'# first\n[backends.{table}]\ntype = "mock"\nx = 1\n'
    tomllib.loads(text)
    assert line_of(text, ["backends", "a]b", "x"]) == 4


def test_text_in_a_multi_line_string_is_not_a_key() -> None:
    """It is not a table either."""
    text = '[settings]\nhost = """\n[backends.a]\nx = 1\n"""\n[backends.a]\nx = 1\n'
    tomllib.loads(text)
    assert line_of(text, ["backends", "a", "x"]) == 7
