"""`files`: images as data URLs or addresses; everything else is refused by its index."""

from __future__ import annotations

import pytest

from bridge.api.cap.files import MAX_DATA_URL, MAX_FILES, read_files
from bridge.errors import InvalidRequest
from bridge.turn.items import Image

PNG = "data:image/png;base64,iVBORw0KGgo="


@pytest.mark.parametrize(
    "file",
    [
        PNG,
        "data:image/svg+xml;base64,PHN2Zz4=",
        "DATA:image/PNG;base64,iVBORw0KGgo=",
        "https://example.org/a.png",
        "http://example.org/a/b.JPEG?size=1#x",
        "https://[2001:db8::1]/a.webp",
    ],
)
def test_images_are_taken_as_they_are(file: str) -> None:
    assert read_files([file]) == (Image(file),)


def test_their_order_is_kept() -> None:
    files = [PNG, "https://example.org/b.gif", PNG]
    assert [image.url for image in read_files(files)] == files


@pytest.mark.parametrize(
    "file",
    [
        "",
        "report.pdf",
        "/etc/passwd",
        "file:///etc/passwd",
        "ftp://example.org/a.png",
        "javascript:alert(1)//.png",
        "s3://bucket/a.png",
        "https://example.org/report.pdf",
        "https://example.org/",
        "https://a.png",
        "https:///a.png",
        "https://",
        "https://[::1/a.png",
        "https://user:secret@example.org/a.png",
        "https://example.org/a b.png",
        "https://example.org/a\r\nx.png",
        "https://example.org/" + "x" * 9000 + ".png",
        "data:text/html;base64,PGI+",
        "data:image/png,raw",
        "data:audio/wav;base64,UklGRg==",
        "data:;base64,AA==",
        "data:image/png;base64," + "A" * MAX_DATA_URL,
        "data:image/png;base64,",
        "data:image/png;base64,iVBORw0KGgo",
        "data:image/png;base64,iVBORw0KGgp=",
        "data:image/png;base64,iVBO Rw0KGgo=",
        "data:image/png;base64,iVBORw0KGgo=!",
        "data:image/png;base64,not base64 at all",
        "data:image/png;base64,é",
        "data:image/png;base64,iVBORw0KGgo%3D",
        "data:image/png;base64,_-_-",
    ],
)
def test_anything_else_is_refused_by_its_index(file: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_files([PNG, file])
    error = caught.value
    assert (error.code, error.http_status, error.param) == ("unsupported_file", 422, "payload.files[1]")
    assert "1" in error.message
    assert "passwd" not in error.message
    assert "secret" not in error.message


def test_there_is_a_limit() -> None:
    assert len(read_files([PNG] * MAX_FILES)) == MAX_FILES
    with pytest.raises(InvalidRequest) as caught:
        read_files([PNG] * (MAX_FILES + 1))
    assert (caught.value.code, caught.value.http_status) == ("too_many_files", 422)
