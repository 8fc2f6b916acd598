"""Which addresses may be given a secret, and which of them are this machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.urls import check_url, is_loopback, leads_here


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com/v1",
        "https://bücher.example/v1",
        "https://xn--bcher-kva.example",
        "https://10.0.0.1:8443",
        "https://[2001:db8::1]:8443/v1",
        "http://localhost:11435",
        "http://LOCALHOST:11435/v1",
        "HTTP://127.0.0.1",
        "http://127.9.9.9:1",
        "http://[::1]:11435/v1",
        "http://[0:0:0:0:0:0:0:1]",
    ],
)
def test_addresses_that_are_fine(url: str) -> None:
    """Kept as they are, but for slashes at the end."""
    assert check_url(url) == check_url(f"{url}/") == check_url(f"{url}//") == url


@pytest.mark.parametrize(
    "url",
    [
        # In the clear, to somebody else
        "http://api.example/v1",
        "http://localhost.evil.example",
        "http://localhost.",
        "http://evil.example/localhost",
        "http://127.0.0.1.evil.example",
        "http://127.0.0.1.nip.io",
        "http://10.0.0.1",
        "http://192.168.1.1:11435",
        "http://0.0.0.0:11435",
        "http://[::]:11435",
        "http://[2001:db8::1]",
        "http://[::ffff:10.0.0.1]",
        "http://evil.example#127.0.0.1",
        "http://evil.example?127.0.0.1",
        # Other spellings of a number, which a resolver might take for another host than we do
        "http://0x7f.1",
        "http://127.1",
        "http://2130706433",
        "http://0177.0.0.1",
        "http://１２７.0.0.1",
        "http://ⓛocalhost",
        "http://localhost%00.evil.example",
        # With a name, a query or a fragment
        "http://127.0.0.1@evil.example",
        "http://evil.example@127.0.0.1",
        "https://user:secret@api.example",
        "https://@api.example",
        "https://api.example/v1?key=secret",
        "https://api.example/v1#part",
        # None at all
        "",
        "localhost:11435",
        "127.0.0.1:11435",
        "//localhost",
        "http:",
        "http://",
        "https:///v1",
        "http:/localhost",
        "ftp://localhost",
        "file:///etc/passwd",
        "unix:/run/bridge.sock",
        "javascript:alert(1)",
        "https://api.example:port",
        "https://api.example:99999",
        "http://[::1",
        "http://::1",
        " https://api.example",
        "https://api.example ",
        "https://api. example",
        "https://api.example\n",
        "https://api.example/\r\nx: y",
        "https://api.example/\x00",
        "https://api.example\tx",
    ],
)
def test_addresses_that_get_no_secret(url: str) -> None:
    """Each of them is refused, and the message does not repeat it: a secret may stand in it."""
    with pytest.raises(ValueError) as refused:
        check_url(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["http://10.0.0.1:8000/v1", "http://ollama:11434/v1", "http://[2001:db8::1]"])
def test_plain_http_for_those_who_want_it(url: str) -> None:
    """Nothing else is allowed by it; the message has the caller's remedy."""
    assert check_url(url, insecure_http=True) == url
    with pytest.raises(ValueError, match="plain http is only allowed for this machine; do this"):
        check_url(url, remedy="do this")
    for other in (url.replace("http:", "ftp:"), f"{url}?key=secret", url.replace("//", "//user:secret@")):
        with pytest.raises(ValueError):
            check_url(other, insecure_http=True)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.255.255.254", "::1"])
def test_this_machine(host: str) -> None:
    """By its name, and by its numbers."""
    assert is_loopback(host)
    assert leads_here(f"http://[{host}]:1/v1" if ":" in host else f"http://{host}:1/v1")


@pytest.mark.parametrize(
    "host",
    ["", "localhost.", "localhost.evil", "0.0.0.0", "::", "128.0.0.1", "127.0.0", "127.1", "127.0.0.1 ", "1.1.1.1"],
)
def test_other_machines(host: str) -> None:
    """What is not surely this one is another one."""
    assert not is_loopback(host)


@given(st.text())
def test_any_text_is_an_address_or_is_refused(text: str) -> None:
    """Nothing else happens; what is accepted in the clear stays here."""
    for url in (text, f"http://{text}", f"https://{text}"):
        try:
            checked = check_url(url)
        except ValueError:
            continue
        assert leads_here(checked) or checked.lower().startswith("https:")
        assert "@" not in checked.split("/")[2]
