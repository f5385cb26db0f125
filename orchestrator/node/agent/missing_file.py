"""The file that a rank did not find, by the exception that ended the rank."""

from __future__ import annotations

import os
import re

from orchestrator.node.system.files import tail

TAIL_BYTES = 16 << 10
# The last line of a traceback, to which torch adds the rank.
EXCEPTION = re.compile(r"^(?:\[rank\d+\]: )?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b.*)$", re.MULTILINE)
MISSING_FILE = re.compile(r"""FileNotFoundError: .*No such file or directory: ['"]([^'"\\]+)['"]$""")


def missing_file_of(stderr: str, error: str | None, cwd: str) -> tuple[str | None, str | None]:
    """
    The message of a FileNotFoundError that ended a rank, and the absolute path if the node does not have it; else None.

    Args:
        stderr: the file of the rank's standard error, whose last exception decides unless there is an `error`.
        error: the message in the rank's error file.
        cwd: the working directory of the ranks.
    """
    if error is None:
        exceptions = EXCEPTION.findall(tail(stderr, TAIL_BYTES))
        error = exceptions[-1] if exceptions else ""
    found = MISSING_FILE.match(error)
    if found is None:
        return None, None
    path = os.path.normpath(os.path.join(cwd, found.group(1)))
    return error, None if os.path.lexists(path) else path
