"""
The byte code that Python keeps beside the modules of a bundle, for all later runs of the same code.

Python before 3.12.8 keeps it also if the file was cut off, on a disk that is full or at the limit of the size of files, and then no program
of the bundle starts any more: EOFError. So none is written where that may happen.
"""

from __future__ import annotations

import os
import resource
import sys

SPACE_BYTES = 1 << 20  # more than all modules of a program need


def write_if_safe(folder: str) -> None:
    """Let Python write byte code from now on if files in this folder are not cut off, and none otherwise."""
    disk = os.statvfs(folder)
    has_space = disk.f_bavail * disk.f_frsize >= SPACE_BYTES
    sys.dont_write_bytecode = not has_space or resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
