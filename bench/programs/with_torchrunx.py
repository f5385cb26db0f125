"""
Run a function on the hosts named in argv as a user of torchrunx would, and print the output of all of them.

torchrunx resolves its own host name and opens its ports at that address; the benchmark keeps them on loopback.
"""

from __future__ import annotations

import logging
import socket
import sys

import torchrunx  # type: ignore[import-not-found]  # only in .venv-bench


def hello() -> None:
    sys.stdout.write("hello from a rank\n")
    sys.stdout.flush()


def handlers() -> list[logging.Handler]:
    return [logging.StreamHandler(sys.stdout)]


if __name__ == "__main__":
    socket.getfqdn = lambda name="": name or "127.0.0.1"
    # without a process group, which is its quickest form
    launcher = torchrunx.Launcher(hostnames=sys.argv[1].split(","), workers_per_host=1, backend=None)
    launcher.set_logging_handlers(handlers).run(hello)
