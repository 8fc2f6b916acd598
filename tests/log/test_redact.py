"""Secrets leave no trace but a hash; everything else stays byte for byte."""

from __future__ import annotations

import json
import re
import string
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.redact import Redactor, mark

KNOWN = 'our "own" key\\9'
MARK = re.compile(r"\[redacted:[0-9a-f]{8}\]")


def letters(alphabet: str, low: int, high: int) -> st.SearchStrategy[str]:
    """A text of these characters."""
    return st.text(alphabet, min_size=low, max_size=high)


WORD = string.ascii_letters + string.digits
SECRETS = st.one_of(
    st.builds("{}-{}".format, st.sampled_from(["sk", "rk", "pk", "sk-proj", "sk-ant"]), letters(WORD + "_", 20, 40)),
    st.builds("cb-{}".format, letters(WORD + "_", 24, 43)),
    st.builds("eyJ{}.eyJ{}.{}".format, *[letters(WORD + "-_", 10, 30)] * 3),
    st.builds("eyJ{}.eyJ{}.{}".format, letters(WORD + "-_", 600, 900), *[letters(WORD + "-_", 10, 30)] * 2),
    st.builds("gsk_{}".format, letters(WORD, 20, 52)),
    st.builds("gh{}_{}".format, st.sampled_from("pousr"), letters(WORD, 20, 40)),
    st.builds("github_pat_{}".format, letters(WORD + "_", 22, 60)),
    st.builds("AIza{}".format, letters(WORD + "-_", 35, 35)),
    st.builds("xox{}-{}".format, st.sampled_from("abprs"), letters(WORD, 12, 30)),
    st.just(KNOWN),
)
"""Secrets that are known by their own shape (and one that is known because it is ours)."""

# What may stand directly before and after a secret without making it part of another word.
EDGES = st.sampled_from(
    [
        "",
        " ",
        "\n",
        "\t",
        "\r\n",
        '"',
        "'",
        "\\",
        "/",
        "=",
        ":",
        "(",
        ",",
        "\0",
        "\x1b",
        "\u2028",
        "é ",
        "%3D",
        "%20",
        "%22",
        "%0a",
        "%253D",
    ]
)
AROUND = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def joined(before: str, edge: str, secret: str, after_edge: str, after: str) -> str:
    """A text with a secret in it; the edge keeps a word before it from running into it."""
    return f"{before}{edge or ' '}{secret}{after_edge or ' '}{after}"


@st.composite
def hidden_secrets(draw: st.DrawFn) -> tuple[str, Any]:
    """(secret, a JSON value that holds it in some text)."""
    secret = draw(SECRETS)
    text = joined(draw(AROUND), draw(EDGES), secret, draw(EDGES), draw(AROUND))
    if draw(st.booleans()):
        # As tool arguments are: JSON within a JSON string.
        text = json.dumps({"arguments": text}, ensure_ascii=draw(st.booleans()))
    path = draw(st.lists(st.sampled_from(["list", "text", "input"]), max_size=4))
    value: Any = text
    for step in path:
        value = [value] if step == "list" else {step: value}
    return secret, value


@given(hidden_secrets())
def test_a_secret_does_not_survive_wherever_it_stands(hidden: tuple[str, Any]) -> None:
    """In any JSON text, after any character, and one level of escaping deeper."""
    secret, value = hidden
    line = orjson.dumps(value)
    clean = Redactor((KNOWN,)).json(line)
    assert secret not in json.dumps(orjson.loads(clean), ensure_ascii=False).replace('\\\\"', '"')
    assert orjson.dumps(secret)[1:-1] not in clean
    assert MARK.search(clean.decode())


@given(letters(WORD + "._~+/=-", 12, 60), EDGES)
def test_what_a_bearer_header_holds_does_not_survive(token: str, edge: str) -> None:
    """Whatever the token looks like, in either spelling of the scheme."""
    for scheme in ("Bearer", "bearer", "Authorization: Bearer", "bEaReR"):
        for between in (" ", "   ", "\t", " \t ", "%20", "+", "%20%20"):
            line = orjson.dumps({"text": f"so{edge} {scheme}{between}{token}\nand on"})
            for text in (line, orjson.dumps({"arguments": line.decode()})):
                assert token.encode() not in Redactor().json(text)


@given(letters(WORD + "%._", 1, 20), letters(WORD + "%!$._-", 6, 30), EDGES)
def test_the_userinfo_of_a_url_does_not_survive(user: str, password: str, edge: str) -> None:
    """The host stays readable."""
    line = orjson.dumps({"text": f"see{edge} https://{user}:{password}@example.org/path now"})
    clean = Redactor().json(line)
    assert f":{password}@".encode() not in clean
    assert b"@example.org/path now" in clean


SAFE = st.text(st.sampled_from(list('abcdefgh 0123456789\n\t"\\{}[],é日\u2028')), max_size=60)
SAFE_KEYS = st.sampled_from(["text", "input", "delta", "type", "a b", "é"])
SAFE_DOCUMENTS = st.recursive(
    st.one_of(SAFE, st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, width=32)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(SAFE_KEYS, inner, max_size=4)),
    max_leaves=12,
)


@given(SAFE_DOCUMENTS)
def test_what_holds_no_secret_stays_byte_for_byte(value: Any) -> None:
    """Also its spacing, order and escapes."""
    for line in (orjson.dumps(value), json.dumps(value).encode(), json.dumps(value, indent=1).encode()):
        assert Redactor((KNOWN,)).json(line) == line
        assert Redactor((KNOWN,)).text(line) == line


@pytest.mark.parametrize(
    "text",
    [
        "task-oriented-development-of-programs",
        "risk-free-and-disk-based-and-desk-bound-things",
        "https://example.org/a:b@c",
        "mail me@example.org: now",
        "the bearer of this letter",
        "ask-me-anything-about-pythons",
        "tokens: 5, key frames, a cookie recipe, secretary",
        "sk-short",
        "eyJust a word. And another.",
        "ghost_writer github_path",
        "ratio 3:4 @ noon, http://host:8080/path@v2",
    ],
)
def test_ordinary_words_are_no_secrets(text: str) -> None:
    """What only looks a little like one is left alone."""
    line = orjson.dumps({"text": text})
    assert Redactor().json(line) == line


SECRET_NAMES = [
    "authorization",
    "Authorization",
    "x-api-key",
    "X_Api_Key",
    "api_key",
    "apiKey",
    "OPENAI_API_KEY",
    "access_token",
    "refreshToken",
    "id_token",
    "client_secret",
    "password",
    "Set-Cookie",
    "token",
    "private_key",
    "secret_key",
    "AWS_SECRET_KEY",
    "passphrase",
    "keyPassphrase",
    "api_keys",
    "apiKeys",
]


@pytest.mark.parametrize("key", SECRET_NAMES)
def test_members_with_a_secret_s_name_lose_their_value(key: str) -> None:
    """Whatever the value looks like, at any depth, in any spelling of the name."""
    clean = orjson.loads(Redactor().json(orjson.dumps({"a": [{key: "hunter2", "b": "hunter2"}]})))
    assert MARK.fullmatch(clean["a"][0][key])
    assert clean["a"][0]["b"] == "hunter2"


def test_names_with_other_values_keep_them() -> None:
    """A schema that has a property `password`, a count of tokens, an empty string: nothing to hide."""
    value = {"password": {"type": "string"}, "token": 5, "secret": "", "cookie": None, "total_tokens": "7"}
    line = orjson.dumps(value)
    assert Redactor().json(line) == line


def test_a_long_number_under_a_secret_s_name_is_one() -> None:
    """Written without quotes, alone or in a list; elsewhere it is a number like others."""
    value = {"password": 31415926535, "api_keys": [31415926535, 5], "size": 31415926535, "token": True}
    clean = orjson.loads(Redactor().json(orjson.dumps(value)))
    assert MARK.fullmatch(clean["password"])
    assert clean["api_keys"] == [clean["password"], 5]
    assert (clean["size"], clean["token"]) == (31415926535, True)


def test_the_hash_tells_equal_from_different() -> None:
    """Equal secrets stay equal, so that a log can still be matched; different ones differ."""
    one, two = "sk-" + "a" * 24, "sk-" + "b" * 24
    clean = orjson.loads(Redactor().json(orjson.dumps([one, two, f"x {one}"])))
    assert clean[0] != clean[1]
    assert clean[2] == f"x {clean[0]}"
    assert MARK.fullmatch(clean[0])


def test_a_text_that_is_no_json_is_cleaned_too() -> None:
    """A torn line or a line of a log is cleaned by shape."""
    clean = Redactor(("our-own-key",)).json(b'{"torn": "sk-aaaaaaaaaaaaaaaaaaaaaaaa and our-own-key')
    assert b"sk-a" not in clean
    assert b"our-own-key" not in clean
    assert clean.startswith(b'{"torn": "')


def test_long_texts_are_searched_in_linear_time() -> None:
    """Long runs of almost-secrets take a moment, not an hour."""
    for piece in (
        "sk-",
        "eyJ.",
        "https://a:",
        "Bearer ",
        "x:y@",
        "://" + "a" * 300,
        "-eyJ",
        "%3DeyJ",
        "eyJa" * 200 + "-",
        "Bearer\t",
        "%3Fkey",
        "%3D",
    ):
        line = orjson.dumps({"text": piece * (400_000 // len(piece))})
        Redactor((KNOWN,)).json(line)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: BEARER abcdefgh12345678",
        "https:\\/\\/user:pass12345@example.org",
        "passphrase: abcdefgh12345678abcdefgh12345678",
        "secret_key=abcdefgh12345678abcdefgh12345678",
        "password%3Dabcdefgh12345678abcdefgh12345678",
        "the%20token%3A%20%22abcdefgh12345678abcdefgh12345678%22",
        "redirect=https%3A%2F%2Fexample.org%2F%3Fapi_key%3Dabcdefgh12345678%26b",
    ],
)
def test_unusual_spellings_do_not_save_a_secret(text: str) -> None:
    """The scheme in capitals, escaped slashes, and secrets within a URL."""
    clean = Redactor().json(orjson.dumps({"text": text}))
    assert b"abcdefgh12345678" not in clean
    assert b"pass12345" not in clean
    assert MARK.search(clean.decode())


def test_what_was_removed_once_stays_as_it_is() -> None:
    """A recorded request is recorded again when it is replayed, and must look the same."""
    told = {"password": "hunter2hunter2", "tokens": ["abcdefgh"], "text": f"Bearer {'b' * 20} https://me:secret@host/"}
    once = Redactor((KNOWN,)).json(orjson.dumps(told))
    assert len(MARK.findall(once.decode())) == 3
    assert Redactor((KNOWN,)).json(once) == once


@pytest.mark.parametrize("write", [str, orjson.dumps, lambda text: json.dumps(text).replace("/", "\\/")])
def test_our_own_secrets_alone_are_removed(write: Any) -> None:
    """However they are written, the longer of two whole; a short one is a word like others, and shapes stay."""
    redactor = Redactor((KNOWN, "a/b/c/d/e/f", "a/b/c/d/e/f/g", "response"), shortest=10)
    told = write(f"a response: {KNOWN}, a/b/c/d/e/f, a/b/c/d/e/f/g, sk-{'a' * 24}")
    clean = redactor.without_known(told if isinstance(told, bytes) else told.encode()).decode()
    assert clean.strip('"') == f"a response: [redacted], [redacted], [redacted], sk-{'a' * 24}"


@pytest.mark.parametrize("written", ["a%2Bb%2Fc%26d%3Ce%3E", "a+b/c\\u0026d\\u003ce\\u003e", "a+b\\/c&d<e>"])
def test_our_own_secrets_are_removed_where_they_are_escaped(written: str) -> None:
    """As in a URL, and as in JSON that is safe within HTML."""
    assert Redactor(("a+b/c&d<e>",)).text(f"at {written}!".encode()) == f"at {mark(written)}!".encode()


def test_a_text_that_was_clean_is_searched_again_for_a_new_secret() -> None:
    """It is not searched twice otherwise."""
    redactor = Redactor()
    assert not redactor.suspicious("a new-word-1234")
    redactor.learn(["new-word-1234"])
    assert redactor.suspicious("a new-word-1234")


@pytest.mark.parametrize("levels", [5, 127, 129, 300, 600, 1000, 5000])
@pytest.mark.parametrize("times", [0, 1, 2])
def test_no_nesting_is_too_deep(levels: int, times: int) -> None:
    """Neither of a value nor of one within a text, or within a text within a text."""
    nested = "[" * levels + '{"password":"hunter2secret"}' + "]" * levels
    for _ in range(times):
        nested = json.dumps({"input": nested})
    cleaned = Redactor().json(nested.encode())
    if levels <= 1000:
        assert b"hunter2" not in cleaned
        json.loads(cleaned)


def test_an_event_stream_loses_its_secrets_alone() -> None:
    """In texts, under names, and in lines that are no events; every other byte stays."""
    secret = "sk-" + "a1" * 12
    lines = [
        'data: {"type":"response.output_text.delta","delta":"one SECRET two"}',
        "",
        'data: {"type":"x","password":"hunter2","key":"SECRET"}',
        ": SECRET",
        'data: {"type":"response.output_text.delta","delta":"token"}',
        "",
    ]
    chunk = "\n".join(lines)
    cleaned = Redactor().sse(chunk.replace("SECRET", secret).encode()).decode()
    assert MARK.sub("SECRET", cleaned) == chunk.replace("hunter2", "SECRET")
