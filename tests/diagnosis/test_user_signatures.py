"""A user's signatures: the format, and every mistake with its line and reason."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator.diagnosis.catalogue import CATALOGUE
from orchestrator.diagnosis.evidence import LogSearch
from orchestrator.diagnosis.rank_causes import Confidence, rank_causes
from orchestrator.diagnosis.signature import Role
from orchestrator.diagnosis.user_signatures import SignatureError, read_signatures
from orchestrator.errors import UsageError
from orchestrator.node.search import LOOKAHEAD_BYTES
from orchestrator.usecases.diagnose.log_files import user_signatures

LICENCE = """\
# of our site
[licence-server]
text: no licence from * after
cause: the licence server did not answer
remedy: lmstat -a
remedy: ask the admins
sample: no licence from lic0 after 30 s
near: a licence from lic0 after 3 s
kind: network
"""


def test_a_signature_of_the_user_is_found_and_weighed() -> None:
    row = read_signatures(LICENCE, "mine", CATALOGUE)["licence-server"]
    assert (row.role, row.retry, row.remedy, row.texts) == (
        Role.ROOT,
        "retry",
        ("lmstat -a", "ask the admins"),
        ("no licence from",),
    )
    log = b"[n0:1] solver: no licence from lic7 after 30 s (e.g. [x])\n[n0:1] RuntimeError: solver failed\n"
    found = rank_causes(LogSearch({**CATALOGUE, row.id: row}).evidence([log], "log"))
    assert (found.signature, found.ranks, found.confidence) == ("licence-server", (1,), Confidence.MEDIUM)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("[licence-server]", "[Licence]"), "mine:2: '[Licence]' is no id in brackets, as in [licence-server]"),
        (("[licence-server]", "[cuda-oom]"), "mine:2: [cuda-oom] is the id of another signature; choose a new one"),
        (("[licence-server]", ""), "mine:3: 'text: no licence from * after' is not `key: value` below an [id]"),
        (("kind: network", "kind"), "mine:9: 'kind' is not `key: value` below an [id]"),
        (("kind: network", "kind: site"), "mine:9: kind: 'site' is none of config, code, memory, storage, network, node, numbers, hang, preemption"),
        (("kind: network", "pattern: x"), "mine:9: pattern: no such key; the keys are text, cause, remedy, sample, near, role, kind, retry"),
        (("kind: network", "cause: x"), "mine:9: cause: is in [licence-server] twice"),
        (("cause: the licence server did not answer\n", ""), "mine:2: [licence-server] has no cause: line"),
        (("text: no licence from * after", "text: *from*"), "mine:2: [licence-server] text: has no 6 characters in a row without `*`, so it would be found everywhere"),
        (("text: no licence from * after", "text: no licence*a*b*c*d*e"), "mine:2: [licence-server] text: is longer than 500 characters, or has more than 4 `*`, which is slow"),
        (("sample: no licence", "sample: some licence"), "mine:2: [licence-server] text: is not found in the sample 'some licence from lic0 after 30 s'"),
        (("near: a licence", "near: no licence"), "mine:2: [licence-server] text: is found in 'no licence from lic0 after 3 s', which is given as near:"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line(changed: tuple[str, str], message: str) -> None:
    with pytest.raises(SignatureError) as caught:
        read_signatures(LICENCE.replace(*changed), "mine", CATALOGUE)
    assert str(caught.value) == message


def test_the_same_id_twice_is_a_mistake() -> None:
    with pytest.raises(SignatureError, match=r"mine:12: \[licence-server\] is the id of another signature"):
        read_signatures(f"{LICENCE}\n{LICENCE}", "mine", CATALOGUE)


def test_a_text_with_many_wildcards_is_searched_in_linear_time() -> None:
    row = read_signatures(
        LICENCE.replace("text: no licence from * after", "text: lic*lic*lic*lic*licence server").replace(
            "sample: no licence from lic0 after 30 s", "sample: lic lic, lic of lic: (lic) licence server"
        ),
        "mine",
        CATALOGUE,
    )["licence-server"]
    begun = time.process_time()
    assert row.expression.search("lic" * (LOOKAHEAD_BYTES // 3)) is None
    assert time.process_time() - begun < 0.5


def test_file_that_cannot_be_read_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        user_signatures(tmp_path / "none.ini")
    assert str(refused.value) == f"{tmp_path / 'none.ini'}: No such file or directory"
