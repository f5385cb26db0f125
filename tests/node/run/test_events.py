"""The events of a node folder, on a file system that takes no more of them."""

from __future__ import annotations

import errno
import json
import resource
from pathlib import Path

from orchestrator.node.run.events import EVENTS, Clock, EventLog


def test_line_that_is_cut_off_is_taken_back_and_written_later(tmp_path: Path) -> None:
    log, file = EventLog(str(tmp_path), Clock()), tmp_path / EVENTS
    log.write_message("whole")
    size = file.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
    try:
        log.write_message("cut off")
        error = log.flush()
        assert file.stat().st_size == size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error is not None
    assert (error.errno, error.filename) == (errno.EFBIG, str(file))
    assert log.flush() is None
    assert [json.loads(line)["text"] for line in file.read_text().splitlines()] == ["whole", "cut off"]
