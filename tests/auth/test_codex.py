"""auth.json: read in every form, and what a refresh changes in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from upstream.tokens import ACCOUNT, CHATGPT_FORMS, FORMS, KEY_FORMS, Logins, assert_no_secrets, auth_json, jwt

from bridge.errors import LOG_IN
from bridge.store.private_files import MAX_FILE, write_json
from bridge.upstream.codex import FILE, NotLoggedIn, parse_auth, with_tokens
from bridge.upstream.login import Login

Json = dict[str, Any]

ANSWER = {"access_token": "new-access", "refresh_token": "new-refresh", "id_token": jwt("new", "acct-new")}


# Reading


@pytest.mark.parametrize("form", CHATGPT_FORMS)
def test_a_chatgpt_login_is_its_tokens_and_the_account(form: Any) -> None:
    logins = Logins()
    tokens = logins.issue()
    login = parse_auth(auth_json(form, logins, tokens))
    assert login == Login("chatgpt", tokens["access_token"], tokens["refresh_token"], ACCOUNT)


@pytest.mark.parametrize("form", KEY_FORMS)
def test_a_login_with_a_key(form: Any) -> None:
    logins = Logins()
    assert parse_auth(auth_json(form, logins)) == Login("api_key", logins.key)


def test_without_a_mode_tokens_win_over_a_key() -> None:
    data = {"OPENAI_API_KEY": "key", "tokens": {"access_token": "access"}}
    assert parse_auth(data) == Login("chatgpt", "access")
    assert parse_auth({**data, "auth_mode": None}) == Login("chatgpt", "access")
    assert parse_auth({**data, "auth_mode": "something new"}) == Login("chatgpt", "access")
    assert parse_auth({**data, "tokens": None}) == Login("api_key", "key")


def test_the_mode_decides_when_there_are_both() -> None:
    data = {"OPENAI_API_KEY": "key", "tokens": {"access_token": "access"}}
    assert parse_auth({**data, "auth_mode": "apikey"}) == Login("api_key", "key")
    assert parse_auth({**data, "auth_mode": "chatgpt"}) == Login("chatgpt", "access")


@pytest.mark.parametrize(
    ("tokens", "account"),
    [
        ({"account_id": "told", "id_token": jwt("x", "claimed")}, "told"),
        ({"account_id": None, "id_token": jwt("x", "claimed")}, "claimed"),
        ({"account_id": "", "id_token": {"chatgpt_account_id": "inside", "raw_jwt": jwt("x", "claimed")}}, "inside"),
        ({"id_token": {"raw_jwt": jwt("x", "claimed")}}, "claimed"),
        ({"id_token": {"chatgpt_account_id": 7, "raw_jwt": jwt("x", "claimed")}}, "claimed"),
        ({"id_token": jwt("x", None)}, None),
        ({"id_token": "no.jwt"}, None),
        ({"id_token": "not.!!!.base64"}, None),
        ({"id_token": "ü.ü.ü"}, None),
        ({"id_token": "a.bm8ganNvbg.c"}, None),
        ({"id_token": "a.W10.c"}, None),
        ({"id_token": "a." + "A" * 100_000 + ".c"}, None),
        ({"id_token": ["a", "b"]}, None),
        ({"access_token": jwt("x", "claimed")}, "claimed"),
        ({"access_token": jwt("x", "other"), "id_token": jwt("x", "claimed")}, "claimed"),
        ({}, None),
    ],
    ids=range(16),
)
def test_the_account_is_found_wherever_it_is(tokens: Json, account: str | None) -> None:
    assert parse_auth({"tokens": {"access_token": "a", **tokens}}).account_id == account


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "canary",
        7,
        {},
        {"auth_mode": "chatgpt"},
        {"auth_mode": "chatgpt", "OPENAI_API_KEY": "sk-canary"},
        {"auth_mode": "chatgpt", "tokens": []},
        {"auth_mode": "chatgpt", "tokens": {"access_token": ""}},
        {"auth_mode": "chatgpt", "tokens": {"access_token": ["canary"]}},
        {"auth_mode": "api_key", "tokens": {"access_token": "canary"}},
        {"auth_mode": "apikey", "OPENAI_API_KEY": None},
        {"auth_mode": ["canary"], "OPENAI_API_KEY": 7, "tokens": "canary"},
    ],
    ids=repr,
)
def test_a_file_without_a_usable_login_says_how_to_log_in(data: Any) -> None:
    with pytest.raises(NotLoggedIn) as caught:
        parse_auth(data)
    assert caught.value.message.endswith(LOG_IN)
    assert (caught.value.code, caught.value.http_status) == ("codex_not_logged_in", 401)
    assert_no_secrets(caught.value, caught.value.body())


@pytest.mark.parametrize("value", ["canary\r\nx-evil: 1", "canary\n", " canary", "canär-canary", "canary\x00", "   "])
def test_a_text_that_is_invalid_in_a_header_is_not_a_token(value: str) -> None:
    """Else it would be written into a request, or into the error of whoever refuses to."""
    for data in (
        {"tokens": {"access_token": value}},
        {"auth_mode": "chatgpt", "tokens": {"access_token": value}},
        {"auth_mode": "apikey", "OPENAI_API_KEY": value},
    ):
        with pytest.raises(NotLoggedIn) as caught:
            parse_auth(data)
        assert_no_secrets(caught.value)
    for tokens in ({"account_id": value}, {"id_token": jwt("x", value)}, {"id_token": {"chatgpt_account_id": value}}):
        assert parse_auth({"tokens": {"access_token": "a", **tokens}}).account_id is None


MEMBERS = st.sampled_from(["auth_mode", "OPENAI_API_KEY", "tokens", "access_token", "id_token", "raw_jwt", "x"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MEMBERS, inner, max_size=4),
)


@given(ANYTHING)
def test_any_json_is_a_login_or_none(data: Any) -> None:
    """Nothing else than NotLoggedIn is raised, and a login always has a token."""
    with suppress(NotLoggedIn):
        assert parse_auth(data).token


@pytest.mark.parametrize("form", FORMS)
def test_a_login_shows_no_secret(form: Any) -> None:
    assert_no_secrets(parse_auth(auth_json(form, Logins())))


# Files


def test_a_file_that_is_not_there_says_how_to_log_in(tmp_path: Path) -> None:
    with pytest.raises(NotLoggedIn) as caught:
        FILE.read(tmp_path / "auth.json")
    assert caught.value.message == f"Codex is not logged in. {LOG_IN}"
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not valid JSON"),
        (b'{"OPENAI_API_KEY": "sk-canary', "is not valid JSON"),
        (b"\xff\xfe\x00canary", "is not valid JSON"),
        (b'{"OPENAI_API_KEY": "canary\xff"}', "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b'"sk-canary"', "is not a JSON object"),
        (b"null", "is not a JSON object"),
    ],
    ids=range(7),
)
def test_an_invalid_file_names_its_fault_without_its_content(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "auth.json"
    path.write_bytes(content)
    with pytest.raises(NotLoggedIn, match=reason) as caught:
        FILE.read(path)
    assert caught.value.message.endswith(LOG_IN)
    assert_no_secrets(caught.value)


def test_a_directory_and_a_loop_of_links_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "auth.json").mkdir()
    with pytest.raises(NotLoggedIn, match="cannot be read: it is not a file"):
        FILE.read(tmp_path / "auth.json")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(NotLoggedIn, match="cannot be read: Too many levels of symbolic links"):
        FILE.read(tmp_path / "loop")


def test_anything_but_a_file_leaks_no_descriptor(tmp_path: Path) -> None:
    """A server looks again at every request."""
    open_files = Path("/proc/self/fd")
    before = len(list(open_files.iterdir()))
    for _ in range(50):
        with pytest.raises(NotLoggedIn):
            FILE.read(tmp_path)
    assert len(list(open_files.iterdir())) < before + 25


READ = """
import contextlib, resource, sys
from pathlib import Path
from bridge.upstream.codex import FILE, NotLoggedIn
with contextlib.suppress(ValueError):  # some systems know no such limit
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    FILE.read(Path(sys.argv[1]))
except NotLoggedIn as error:
    print(error.message)
"""


@pytest.mark.parametrize("what", ["pipe", "device"])
def test_a_pipe_is_not_waited_for_and_a_device_not_read_to_its_end(tmp_path: Path, what: str) -> None:
    path = tmp_path / "auth.json"
    if what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    told = subprocess.run([sys.executable, "-c", READ, path], timeout=30, capture_output=True, text=True, check=True)
    assert told.stdout == f"auth.json cannot be read: it is not a file. {LOG_IN}\n"


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "auth.json"
    path.write_bytes(b"{}".ljust(MAX_FILE))
    assert FILE.read(path) == {}
    path.write_bytes(b"{}".ljust(MAX_FILE + 1))
    with pytest.raises(NotLoggedIn, match="cannot be read: it is too large"):
        FILE.read(path)


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "auth.json"
    path.write_bytes(b'\xef\xbb\xbf{"OPENAI_API_KEY": "key"}')
    assert parse_auth(FILE.read(path)) == Login("api_key", "key")


READ_AS_NOBODY = """
import os, sys
from pathlib import Path
from bridge.upstream.codex import FILE, NotLoggedIn
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    FILE.read(Path(sys.argv[1]))
except NotLoggedIn as error:
    print(error.message)
"""


def test_a_file_of_somebody_else_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "auth.json"
    path.write_text("{}")
    path.chmod(0)
    told = subprocess.run([sys.executable, "-c", READ_AS_NOBODY, path], capture_output=True, text=True, check=True)
    assert told.stdout == f"auth.json cannot be read: Permission denied. {LOG_IN}\n"


# New tokens


@pytest.mark.parametrize("form", CHATGPT_FORMS)
def test_new_tokens_replace_the_old_ones(form: Any) -> None:
    old = auth_json(form, Logins(), surprise={"kept": [1, None]})
    before = json.dumps(old)
    new = with_tokens(old, ANSWER, "now")
    assert json.dumps(old) == before
    assert list(new) == list(old)
    assert list(new["tokens"]) == list(old["tokens"])
    assert new["last_refresh"] == "now"
    assert new["surprise"] == {"kept": [1, None]}
    assert new.get("auth_mode") == old.get("auth_mode")
    assert parse_auth(new) == Login("chatgpt", "new-access", "new-refresh", ACCOUNT)


def test_the_form_of_the_id_token_stays() -> None:
    text, thing = (with_tokens(auth_json(form, Logins()), ANSWER, "now") for form in ("chatgpt", "chatgpt_object"))
    assert text["tokens"]["id_token"] == ANSWER["id_token"]
    assert thing["tokens"]["id_token"] == {
        "raw_jwt": ANSWER["id_token"],
        "chatgpt_account_id": "acct-new",
        "email": "canary@example.com",
    }


@pytest.mark.parametrize("missing", [{}, {"refresh_token": None}, {"refresh_token": "", "id_token": 7}])
def test_members_that_the_answer_lacks_stay(missing: Json) -> None:
    old = auth_json("chatgpt", Logins())
    new = with_tokens(old, {"access_token": "new-access", **missing}, "now")
    assert new["tokens"] == {**old["tokens"], "access_token": "new-access"}


NAMES = st.text(max_size=8)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    SCALARS | NAMES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)
)


@given(
    top=st.dictionaries(NAMES, VALUES, max_size=4),
    inner=st.dictionaries(NAMES, VALUES, max_size=4),
    id_token=VALUES | st.dictionaries(NAMES, VALUES, max_size=4),
)
def test_unknown_members_survive_a_refresh(
    tmp_path_factory: pytest.TempPathFactory, top: Json, inner: Json, id_token: Any
) -> None:
    """Through the file and back: only the tokens and the time of the refresh are others."""
    old = {**top, "tokens": {**inner, "access_token": "old", "id_token": id_token}}
    path = tmp_path_factory.getbasetemp() / "property-auth.json"
    write_json(path, with_tokens(old, ANSWER, "now"))
    new = FILE.read(path)
    tokens = {**inner, "access_token": "new-access", "refresh_token": "new-refresh"}
    tokens["id_token"] = ANSWER["id_token"]
    if isinstance(id_token, dict):
        tokens["id_token"] = {**id_token, "raw_jwt": ANSWER["id_token"], "chatgpt_account_id": "acct-new"}
    assert new == {**top, "tokens": tokens, "last_refresh": "now"}


def test_a_number_of_many_digits_survives_a_refresh(tmp_path: Path) -> None:
    path = tmp_path / "auth.json"
    number = 12345678901234567890**5
    path.write_text(json.dumps({"tokens": {"access_token": "old"}, "number": number}))
    write_json(path, with_tokens(FILE.read(path), ANSWER, "now"))
    assert json.loads(path.read_text())["number"] == number
