"""Pushing to an endpoint: the working folder, bundles and files, and refused content."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.code import bundle as bundles
from orchestrator.endpoint.client import Endpoint, RunContent
from orchestrator.errors import NodeError
from orchestrator.launchers.push import send_bundle
from orchestrator.node.endpoint import push as receive
from orchestrator.node.run.code_folder import copy_file, copy_folder
from orchestrator.transports.local import LocalTransport


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
        yield endpoint


def tar(*members: tuple[str, bytes | str], kind: bytes = tarfile.REGTYPE) -> bytes:
    """A tar.gz of files with content, or of links or devices with a target."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = (tarfile.SYMTYPE if kind == tarfile.REGTYPE else kind), content
                archive.addfile(info)
            else:
                info.size, info.mode = len(content), 0o755 if name.endswith(".sh") else 0o644
                archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_hello_describes_the_node(endpoint: Endpoint) -> None:
    facts = endpoint.facts
    assert facts.python == "{}.{}.{}".format(*sys.version_info[:3])
    assert facts.host_id.startswith(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip() + "/")
    assert facts.hostname == os.uname().nodename
    assert facts.home == str(Path.home())


@pytest.mark.processes
def test_prepare_makes_private_folders_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
        assert endpoint.prepare("~/deep/.orch", "abc") is False
    for name in ("bundles", "runs"):
        assert mode(tmp_path / "deep/.orch" / name) == 0o700


def test_prepare_closes_folders_that_were_open(endpoint: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs").chmod(0o777)
    endpoint.prepare(str(tmp_path), "abc")
    assert mode(tmp_path / "runs") == 0o700


def test_file_instead_of_the_working_folder_is_named(endpoint: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "work").write_text("")
    with pytest.raises(NodeError, match=r"work is not a folder") as caught:
        endpoint.prepare(str(tmp_path / "work"), "abc")
    assert caught.value.node == "n0"
    assert "workdir" in caught.value.hint


@pytest.mark.parametrize("name", ["bundles", "runs"])
def test_a_planted_link_in_the_working_folder_is_refused(endpoint: Endpoint, tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NodeError, match=f"work/{name} is a symbolic link"):
        endpoint.prepare(str(tmp_path / "work"), "abc")


def test_a_working_folder_that_everyone_can_write_to_is_refused(endpoint: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work").chmod(0o777)
    with pytest.raises(NodeError, match="work is writable for everyone"):
        endpoint.prepare(str(tmp_path / "work"), "abc")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a folder")
def test_somebody_elses_working_folder_is_refused(endpoint: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    os.chown(tmp_path / "work", 12345, 12345)
    with pytest.raises(NodeError, match=r"work belongs to user 12345, not to 0; .* such as .*/work/\$USER"):
        endpoint.prepare(str(tmp_path / "work"), "abc")
    (tmp_path / "work").chmod(0o1777)  # as a folder for a team
    endpoint.prepare(str(tmp_path / "work" / "$USER"), "abc")
    assert [path.name for path in (tmp_path / "work").iterdir()] == [endpoint.facts.user]


@pytest.mark.parametrize("digest", ["../x", "a/b", "", ".", "a\n"])
def test_a_digest_is_a_plain_name(endpoint: Endpoint, tmp_path: Path, digest: str) -> None:
    with pytest.raises(NodeError, match="is not a digest"):
        endpoint.prepare(str(tmp_path), digest)


def _push(endpoint: Endpoint, workdir: Path, payload: bytes) -> None:
    shares: list[float] = []
    endpoint.put_bundle(str(workdir), "abc", payload, hashlib.sha256(payload).hexdigest(), on_sent=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_bundle_arrives_with_its_links_and_private_modes(endpoint: Endpoint, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    files = ("node/agent.py", content), ("code/run.sh", b"#!/bin/sh\n"), ("code/link", "../node/agent.py")
    _push(endpoint, tmp_path, tar(*files))
    bundle = tmp_path / "bundles/abc"
    assert (bundle / "node/agent.py").read_bytes() == content
    assert (bundle / "code/link").read_bytes() == content
    assert [mode(bundle / name) for name in ("node", "node/agent.py", "code/run.sh")] == [0o700, 0o600, 0o700]
    assert endpoint.prepare(str(tmp_path), "abc") is True
    assert [path.name for path in (tmp_path / "bundles").iterdir()] == ["abc"]


def test_bundle_that_exists_is_kept(endpoint: Endpoint, tmp_path: Path) -> None:
    _push(endpoint, tmp_path, tar(("a", b"first")))
    _push(endpoint, tmp_path, tar(("a", b"second")))
    assert (tmp_path / "bundles/abc/a").read_bytes() == b"first"
    assert [path.name for path in (tmp_path / "bundles").iterdir()] == ["abc"]


@pytest.mark.processes
def test_many_pushes_of_one_bundle_at_once_all_succeed(tmp_path: Path) -> None:
    failures: list[NodeError] = []

    def push() -> None:
        try:
            with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
                _push(endpoint, tmp_path, tar(*((f"f{i}", b"x" * i) for i in range(50))))
        except NodeError as failure:
            failures.append(failure)

    threads = [threading.Thread(target=push) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(list((tmp_path / "bundles/abc").iterdir())) == 50
    assert [path.name for path in (tmp_path / "bundles").iterdir()] == ["abc"]


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (tar(("../evil", b"x")), "leads out"),
        (tar(("a/../../evil", b"x")), "leads out"),
        (tar(("/tmp/evil", b"x")), "leads out"),
        (tar(("link", "/etc/passwd")), "links out"),
        (tar(("link", "../../evil")), "links out"),
        (tar(("here", "."), ("evil", "here/../../..")), "links out"),
        (tar(("dir/link", ".."), ("dir/link/evil", b"x")), "symbolic link"),
        (tar(("link", ".."), ("link/evil", b"x")), "symbolic link"),
        (tar(("link", "evil"), ("link", b"x")), "File exists"),
        (tar(("hard", "/etc/passwd"), kind=tarfile.LNKTYPE), "neither"),
        (tar(("fifo", "x"), kind=tarfile.FIFOTYPE), "neither"),
        (tar(("a", os.urandom(100_000)))[:-200], "ended"),
        (b"no archive", "not a gzip file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bundle_never_writes_outside_and_leaves_nothing_behind(
    endpoint: Endpoint, tmp_path: Path, payload: bytes, complaint: str
) -> None:
    work = tmp_path / "a/b/c"
    with pytest.raises(NodeError, match=complaint):
        _push(endpoint, work, payload)
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b", "c", "bundles"]
    assert endpoint.prepare(str(work), "abc") is False


def test_a_damaged_bundle_is_refused(tmp_path: Path) -> None:
    payload = tar(("a", b"x"))
    sha256 = hashlib.sha256(payload + b"x").hexdigest()
    with pytest.raises(ValueError, match="arrived damaged"):
        receive.put_bundle({"workdir": str(tmp_path), "digest": "abc", "sha256": sha256}, payload)
    assert list(tmp_path.iterdir()) == []


def _bundle(root: Path, **texts: str) -> bundles.Bundle:
    for name, text in texts.items():
        (root / name).write_text(text)
        (root / name).chmod(0o755 if name == "tool" else 0o644)
    return bundles.Bundle([(f"code/{path.name}", path) for path in sorted(root.iterdir())])


def _send(endpoint: Endpoint, workdir: Path, bundle: bundles.Bundle) -> list[str]:
    """Send what the node lacks, as a launch does with a large bundle; return the names of it."""
    names = endpoint.lacking(str(workdir), bundle.digest, bundle.manifest)
    assert endpoint.put_part(str(workdir), bundle.digest, bundle.manifest, bundle.part(names))
    return names


def test_large_bundle_is_sent_without_the_files_of_earlier_ones_and_shares_them(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    source, work = tmp_path / "source", tmp_path / "work"
    source.mkdir()
    (source / "link").symlink_to("data")
    first = _bundle(source, data="x" * 1000, tool="#!/bin/sh", train="1")
    assert not endpoint.prepare(str(work), first.digest)
    assert _send(endpoint, work, first) == ["code/data", "code/tool", "code/train"]
    second = _bundle(source, train="2", copy="x" * 1000)
    assert not endpoint.prepare(str(work), second.digest)
    assert _send(endpoint, work, second) == ["code/train"]
    old, new = (work / "bundles" / bundle.digest / "code" for bundle in (first, second))
    assert [(path.name, path.read_text(), mode(path)) for path in sorted(new.iterdir()) if not path.is_symlink()] == [
        ("copy", "x" * 1000, 0o600), ("data", "x" * 1000, 0o600), ("tool", "#!/bin/sh", 0o700), ("train", "2", 0o600)
    ]  # fmt: skip
    assert (new / "link").readlink() == Path("data")
    assert (old / "data").samefile(new / "data")
    assert (old / "train").read_text() == "1"
    assert endpoint.put_run(RunContent(str(work), "x", second.digest, (), 0, 0), claim=False)["is_written"]
    with (work / "runs/x/code/data").open("a") as file:
        file.write("appended")
    assert (old / "data").read_text() == "x" * 1000


def test_bundle_that_needs_a_file_which_is_gone_or_has_changed_is_not_made(endpoint: Endpoint, tmp_path: Path) -> None:
    source, work = tmp_path / "source", tmp_path / "work"
    source.mkdir()
    first = _bundle(source, data="x", train="1")
    endpoint.prepare(str(work), first.digest)
    _send(endpoint, work, first)
    second = _bundle(source, train="2")
    part = second.part(endpoint.lacking(str(work), second.digest, second.manifest))
    data = work / "bundles" / first.digest / "code/data"
    for spoil in (lambda: data.write_text("y"), data.unlink):
        spoil()
        assert not endpoint.put_part(str(work), second.digest, second.manifest, part)
        assert [path.name for path in (work / "bundles").iterdir()] == [first.digest]
    send_bundle(endpoint, str(work), second)
    assert endpoint.prepare(str(work), second.digest)


def test_copies_of_much_code_are_counted(endpoint: Endpoint, tmp_path: Path) -> None:
    source, work = tmp_path / "source", tmp_path / "work"
    source.mkdir()
    bundle = _bundle(source, data="x" * 1000)
    endpoint.prepare(str(work), bundle.digest)
    _send(endpoint, work, bundle)
    job = f'{{"bundle_dir": "{work}/bundles/{bundle.digest}"}}'
    runs = [
        RunContent(str(work), f"r{number}", bundle.digest, [("attempt-1/job.json", job, 0o600)], 0, size)
        for number, size in enumerate((20_000_000, 1000, 20_000_000))
    ]
    replies = [endpoint.put_run(run, claim=True) for run in runs]
    assert [(reply["runs"], reply["runs_code_bytes"]) for reply in replies] == [(1, 1000), (0, 0), (3, 3000)]
    assert endpoint.put_run(runs[2], claim=True)["runs"] == 0, "another node has made the run"


def test_manifest_of_another_bundle_is_refused(endpoint: Endpoint, tmp_path: Path) -> None:
    bundle = _bundle(tmp_path, data="x")
    with pytest.raises(NodeError, match="it is not that of bundle"):
        endpoint.put_part(str(tmp_path), "0" * 32, bundle.manifest, bundle.part(["code/data"]))
    evil = bundles.Bundle([("../evil", tmp_path / "data")])
    endpoint.prepare(str(tmp_path / "work"), evil.digest)
    with pytest.raises(NodeError, match="leads out"):
        endpoint.put_part(str(tmp_path / "work"), evil.digest, evil.manifest, bundle.part([]))
    assert list((tmp_path / "work/bundles").iterdir()) == []


def test_part_of_a_bundle_is_the_same_before_and_after_all_of_it_is_packed(tmp_path: Path) -> None:
    bundle = _bundle(tmp_path, data="x", tool="t", train="1")
    before = bundle.part(["code/train"])
    assert bundle.archive
    bundle.part(["code/tool"])
    assert bundle.part(["code/train"]) == before
    with tarfile.open(fileobj=io.BytesIO(before[0])) as archive:
        assert archive.getnames() == ["code/train"]


def test_copy_shares_blocks_where_the_file_system_can_and_is_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"1")
    copy_file(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b").read_bytes() == b"1"
    assert not (tmp_path / "a").samefile(tmp_path / "b")
    cloned: list[tuple[int, ...]] = []
    monkeypatch.setattr("fcntl.ioctl", lambda *numbers: cloned.append(numbers))
    copy_file(str(tmp_path / "a"), str(tmp_path / "c"))
    assert [numbers[1] for numbers in cloned] == [0x40049409]
    assert (tmp_path / "c").read_bytes() == b""


def test_first_node_on_a_file_system_claims_the_push_of_a_run(endpoint: Endpoint, tmp_path: Path) -> None:
    def is_first(folder: str, run: str) -> bool:
        return endpoint.put_run(RunContent(str(tmp_path / folder), run, "abc", (), 0, 0), claim=True)["is_first"]

    assert [is_first("a", "x"), is_first("a", "x"), is_first("a", "y"), is_first("b", "x")] == [True, False, True, True]


def test_code_folder_of_a_run_is_made_once_from_the_bundle(endpoint: Endpoint, tmp_path: Path) -> None:
    run = RunContent(str(tmp_path), "x", "abc", [("attempt-1/job.json", "{}", 0o600)], 0, 0)
    assert not endpoint.put_run(run, claim=False)["is_written"]
    assert list((tmp_path / "runs/x").iterdir()) == []
    _push(endpoint, tmp_path, tar(("code/run.sh", b"#!/bin/sh\n")))
    assert endpoint.put_run(run, claim=False)["is_written"]
    code = tmp_path / "runs/x/code"
    (code / "made").touch()
    assert endpoint.put_run(run, claim=False)["is_written"]
    assert sorted(path.name for path in code.iterdir()) == ["made", "run.sh"]
    assert sorted(path.name for path in (tmp_path / "runs/x").iterdir()) == ["attempt-1", "code"]


def test_copied_code_has_the_modes_times_and_links_of_the_bundle(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "tool").write_bytes(os.urandom(3000))
    (source / "sub" / "tool").chmod(0o700)
    (source / "link").symlink_to("sub/none")
    os.utime(source / "link", ns=(1, 2), follow_symlinks=False)
    os.utime(source / "sub" / "tool", ns=(1, 3))
    os.utime(source / "sub", ns=(1, 4))
    copy_folder(str(source), str(target))
    for name in ("link", "sub", "sub/tool"):
        states = [(path / name).lstat() for path in (source, target)]
        assert len({(state.st_mode, state.st_size, state.st_mtime_ns) for state in states}) == 1
    assert (target / "sub" / "tool").read_bytes() == (source / "sub" / "tool").read_bytes()
    assert (target / "link").readlink() == Path("sub/none")


def test_code_that_does_not_fit_is_refused_before_it_is_sent(endpoint: Endpoint, tmp_path: Path) -> None:
    free = os.statvfs(tmp_path)
    size = free.f_bavail * free.f_frsize + (1 << 40)
    message = rf"{tmp_path}: \d+ MiB are free on its file system, and the code needs \d+ MiB"
    with pytest.raises(NodeError, match=message) as caught:
        endpoint.prepare(str(tmp_path), "abc", bytes_unpacked=size)
    assert "set workdir:" in caught.value.hint
    _push(endpoint, tmp_path, tar(("a", b"")))
    assert endpoint.prepare(str(tmp_path), "abc", bytes_unpacked=size)
    with pytest.raises(NodeError, match=message):
        endpoint.prepare(str(tmp_path), "abc", bytes_more=size)


def test_file_is_written_while_another_host_with_an_equal_pid_writes_it(tmp_path: Path) -> None:
    """Small pids are common in containers: a temporary name with a pid in it is not unique on a shared file system."""
    (tmp_path / f"job.json.new-{os.getpid()}").touch()
    receive.put_files({"folder": str(tmp_path), "files": [{"path": "job.json", "size": 2, "mode": 0o600}]}, b"{}")
    assert (tmp_path / "job.json").read_bytes() == b"{}"


def test_files_arrive_whole_with_private_modes(endpoint: Endpoint, tmp_path: Path) -> None:
    folder = tmp_path / "runs/x/attempt-1/n0"
    value = 'umlaut ä, quote " $(touch x) \\ \x01\n'
    endpoint.put_files(str(folder), [("node.sh", value, 0o600), ("sub/tool", b"\0\xff", 0o700), ("empty", "", 0o600)])
    assert (folder / "node.sh").read_text(encoding="utf-8") == value
    assert (folder / "sub/tool").read_bytes() == b"\0\xff"
    assert [mode(folder / name) for name in (".", "node.sh", "sub", "sub/tool")] == [0o700, 0o600, 0o700, 0o700]
    assert sorted(path.name for path in folder.iterdir()) == ["empty", "node.sh", "sub"]


def test_link_instead_of_a_file_is_replaced_and_not_followed(endpoint: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/job.json").symlink_to(tmp_path / "victim")
    endpoint.put_files(str(tmp_path / "run"), [("job.json", "{}", 0o600)])
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "run/job.json").read_text() == "{}"


@pytest.mark.parametrize("path", ["../x", "/tmp/x", "a/../../x", "", ".", "a//b", "a/.", "nul\0"])
def test_a_path_that_leads_out_of_its_folder_is_refused(endpoint: Endpoint, tmp_path: Path, path: str) -> None:
    with pytest.raises(NodeError, match="leads out of the folder"):
        endpoint.put_files(str(tmp_path / "run"), [("good", "x", 0o600), (path, "x", 0o600)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "plant", [lambda run, out: run.symlink_to(out), lambda run, out: (run.mkdir(), (run / "sub").symlink_to(out))]
)
def test_files_are_not_written_through_a_linked_folder(
    endpoint: Endpoint, tmp_path: Path, plant: Callable[[Path, Path], object]
) -> None:
    (tmp_path / "out").mkdir()
    plant(tmp_path / "run", tmp_path / "out")
    with pytest.raises(NodeError, match="is a symbolic link"):
        endpoint.put_files(str(tmp_path / "run"), [("sub/file", "x", 0o600)])
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_is_absolute(endpoint: Endpoint) -> None:
    with pytest.raises(NodeError, match="'runs' is not an absolute path"):
        endpoint.put_files("runs", [("a", "x", 0o600)])
