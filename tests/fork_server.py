"""An interpreter that has loaded the whole of the bridge, and becomes a `turnbridge` as often as it is asked.

    python -P tests/fork_server.py DESCRIPTOR

DESCRIPTOR is a socket. Each message on it brings four descriptors: a connection, and stdin, stdout and stderr of one
command. The connection tells what to run, as a line of JSON, and is told the process id, then, at the end, the status
that waitpid gave. See `warm.py` for the other side.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
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


def load_everything() -> None:
    """All that a command could need, so that none has to load it again."""
    for module in pkgutil.walk_packages(bridge.__path__, "bridge."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()


def become(order: dict[str, Any], files: list[int]) -> None:
    """Be the command from here on. It differs from one that was started afresh in what is loaded alone."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, DESCRIPTORS)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    # New ones: whether something is a terminal is seen when they are made.
    sys.stdin = open(0)  # noqa: SIM115
    sys.stdout = open(1, "w")  # noqa: SIM115
    sys.stderr = open(2, "w", errors="backslashreplace", buffering=1)  # noqa: SIM115
    sys.argv = ["turnbridge", *order["arguments"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code: Any = 1
    try:
        importlib.import_module("bridge.cli").main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code or 0)  # Without taking everything down again, which would take its time.


def supervise(connection: socket.socket, files: list[int]) -> None:
    """Start one command, and tell how it ends. Its exit cannot be missed: nobody else waits for it."""
    with connection.makefile("rb") as lines:
        order = json.loads(lines.readline())
    child = os.fork()
    if child == 0:
        become(order, files)
    for file in files:
        os.close(file)
    connection.sendall(b"%d\n" % child)
    _, status = os.waitpid(child, 0)
    with suppress(OSError):
        connection.sendall(b"%d\n" % status)
    os._exit(0)


def forget_the_ended() -> None:
    """Their zombies, that is."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    orders = socket.socket(fileno=int(sys.argv[1]))
    load_everything()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while files := socket.recv_fds(orders, 1, 4)[1]:
        if os.fork() == 0:
            orders.close()
            supervise(socket.socket(fileno=files[0]), files[1:])
        for file in files:
            os.close(file)
        forget_the_ended()


if __name__ == "__main__":
    main()
