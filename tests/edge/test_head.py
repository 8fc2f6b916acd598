"""The head of a request, as its bytes come."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from bridge.http.head import fault_of_head

PIECES = st.sampled_from([b"GET / HTTP/1.1", b"\r\n", b"\n", b"\r", b" ", b"Host: a", b"x", b"\r\n\r\n", b"\t"])


def fault_in_pieces(head: bytes, cuts: list[int]) -> str | None:
    """What is said of a head that comes in these pieces."""
    seen = 0
    for end in [*sorted(cuts), len(head)]:
        fault = fault_of_head(head[:end], seen)
        if fault is not None:
            return fault
        seen = end
    return None


@given(st.lists(PIECES, max_size=12).map(b"".join), st.data())
def test_faults_of_a_head_do_not_depend_on_how_it_is_cut(head: bytes, data: st.DataObject) -> None:
    """Up to its end: what follows is the body's."""
    end = head.find(b"\r\n\r\n")
    head = head if end < 0 else head[: end + 4]
    cuts = data.draw(st.lists(st.integers(0, len(head)), max_size=6))
    assert (fault_in_pieces(head, cuts) is None) == (fault_of_head(head) is None)


def test_a_head_that_arrives_byte_by_byte_is_checked_in_linear_time() -> None:
    head = b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(5000))
    began = time.process_time()
    for end in range(len(head) - 4000, len(head)):
        assert fault_of_head(head[:end], end - 1) is None
    assert time.process_time() - began < 1
