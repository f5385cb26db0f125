"""
What a user of torchrunx writes to run a function on the hosts named in argv, and see what all of them print.

It looks its own host name up and opens its ports there; the benchmark stays on loopback.
"""

from __future__ import annotations

import logging
import socket
import sys

import torchrunx  # type: ignore[import-not-found]  # in .venv-bench alone


def hello() -> None:
    sys.stdout.write("hello from a rank\n")
    sys.stdout.flush()


def handlers() -> list[logging.Handler]:
    return [logging.StreamHandler(sys.stdout)]


if __name__ == "__main__":
    socket.getfqdn = lambda name="": name or "127.0.0.1"
    # no process group, which is the quickest that it has
    launcher = torchrunx.Launcher(hostnames=sys.argv[1].split(","), workers_per_host=1, backend=None)
    launcher.set_logging_handlers(handlers).run(hello)
