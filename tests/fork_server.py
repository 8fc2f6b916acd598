"""An interpreter that has loaded the whole of the bridge, and becomes a `turnbridge` as often as it is asked.

    python -P tests/fork_server.py DESCRIPTOR

DESCRIPTOR is a socket. Each message on it brings four descriptors: a connection, and stdin, stdout and stderr of one
command. The connection says what to run, as a line of JSON. Its answer is the process id, and at the end of the command
the status that waitpid gave. See `warm.py` for the other side.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from typing import Any

import bridge

DESCRIPTORS = 1024
"""More than are ever open here."""
_exit_code = 0


def leave() -> None:
    """Exit without taking down the interpreter, which would take its time. Registered first, it is called last."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(_exit_code)


def load_everything() -> None:
    """All that a command could need, so that none has to load it again."""
    for module in pkgutil.walk_packages(bridge.__path__, "bridge."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()


def become(order: dict[str, Any], files: list[int]) -> None:
    """Be the command from here on. It differs from one that was started afresh only in what is loaded."""
    global _exit_code
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, DESCRIPTORS)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    # New ones: whether something is a terminal is seen when they are made.
    encoding = os.environ.get("PYTHONIOENCODING")
    sys.stdin = open(0, encoding=encoding)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=encoding)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding=encoding, errors="backslashreplace", buffering=1)  # noqa: SIM115
    sys.argv = ["turnbridge", *order["arguments"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        importlib.import_module("bridge.cli").main()
    except SystemExit as end:
        _exit_code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        _exit_code = 1
    sys.exit()


def serve(orders: socket.socket) -> None:
    """Start a command for each message, and report how it ends, until the other side is gone."""
    with selectors.DefaultSelector() as events:
        events.register(orders, selectors.EVENT_READ)
        while True:
            for key, _ in events.select():
                if key.data is not None:
                    child, connection = key.data
                    with connection, suppress(OSError):
                        connection.sendall(b"%d\n" % os.waitpid(child, 0)[1])
                    events.unregister(key.fd)
                    os.close(key.fd)
                elif files := socket.recv_fds(orders, 1, 4)[1]:
                    started = start(files)
                    events.register(os.pidfd_open(started[0]), selectors.EVENT_READ, started)
                else:
                    return


def start(files: list[int]) -> tuple[int, socket.socket]:
    """(process id, connection) of a new command."""
    connection = socket.socket(fileno=files[0])
    with connection.makefile("rb") as lines:
        order = json.loads(lines.readline())
    child = os.fork()
    if child == 0:
        become(order, files[1:])
    for file in files[1:]:
        os.close(file)
    connection.sendall(b"%d\n" % child)
    return child, connection


if __name__ == "__main__":
    atexit.register(leave)
    load_everything()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(socket.socket(fileno=int(sys.argv[1])))
