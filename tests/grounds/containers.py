"""
A real docker daemon for the tests, and its containers; and podman with its own storage.

The image has empty folders only: a container mounts /usr, the nodes' Python and the farm's folder from this machine, so that nothing has to
be downloaded. It shares the network and no processes with it, as those of GPU servers do (`--network host`).
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.grounds import components
from tests.grounds.accounts import is_root
from tests.grounds.components import program
from tests.grounds.keeper import Keeper
from tests.until import until

IMAGE = "orch-test"
_FOLDERS = ("dev", "etc", "home", "opt", "proc", "root", "run", "sbin", "sys", "tmp", "usr", "var/tmp", "work")
_LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"}
_FILES = ("etc/passwd", "etc/group", "etc/nsswitch.conf", "etc/ld.so.cache")
_DAEMON_S = 60.0


class Runtime:
    """A client of docker or podman, with the environment in which it reaches the daemon or the storage of the tests."""

    def __init__(self, client: str, env: Mapping[str, str], options: Sequence[str] = ()) -> None:
        self.client = client
        self.env = env
        self._options = options
        self._names: set[str] = set()
        self("import", "-", IMAGE, stdin=image_tar())

    def __call__(self, *argv: str, stdin: bytes = b"", code: int = 0) -> str:
        """Run the client; return what it prints."""
        done = subprocess.run(
            [program(self.client), *argv],
            check=False,
            input=stdin,
            capture_output=True,
            env={**os.environ, **self.env},
            timeout=60,
        )
        assert done.returncode == code, done.stderr.decode()
        return done.stdout.decode()

    def start(self, name: str, *options: str, folders: Sequence[Path] = (), network: str = "host") -> None:
        """Start a container in which programs of this machine run, with these folders of it mounted."""
        mounts = [f"--volume={folder}:{folder}:ro" for folder in host_folders()]
        mounts += [f"--volume={folder}:{folder}" for folder in folders]
        self._names.add(name)
        self(
            "run",
            "--detach",
            "--name",
            name,
            f"--network={network}",
            *self._options,
            *mounts,
            *options,
            IMAGE,
            "sleep",
            "infinity",
        )

    def processes(self, name: str) -> list[str]:
        """The command lines in a container but its first process, which collects no ended ones, and that of `ps`."""
        rows = [line.split(maxsplit=2) for line in self("exec", name, "ps", "-eo", "pid=,stat=,args=").splitlines()]
        return [args for pid, state, args in rows if pid != "1" and not state.startswith("Z") and " -eo " not in args]

    def clear(self) -> None:
        """Remove all containers that were started, and what runs in them."""
        created = self("ps", "--all", "--quiet", "--filter", "name=orch-").split()
        for name in (*self._names, *created):
            self("rm", "--force", name)
        self._names.clear()


def host_folders() -> list[Path]:
    """The folders of this machine that a container of IMAGE needs: programs, and the Python and the packages of the tests."""
    python = Path(sys.executable).resolve().parent.parent
    shared = {Path("/usr"), Path("/etc/alternatives"), python, Path(sysconfig.get_path("purelib")).parents[2]}
    nested = [folder for folder in shared if any(parent in shared for parent in folder.parents)]
    return [folder for folder in sorted(shared.difference(nested)) if folder.exists()]


@contextlib.contextmanager
def open_docker(folder: Path, enter: Sequence[str] = ()) -> Iterator[Runtime]:
    """
    Start a daemon with all its files in `folder`; on leaving, it and its containers are gone.

    Args:
        enter: the words before a command that runs on another host; `--network host` is the network of that host then.
    """
    if not is_root():
        components.unavailable("only root can start a docker daemon")
    socket, log = folder / "docker.sock", folder / "dockerd.log"
    folder.chmod(0o755)
    keeper = Keeper(folder)
    try:
        keeper.start(
            # the mounts of containers end with the daemon
            [*enter, program("unshare"), "--mount", program("dockerd"), "--bridge=none", "--iptables=false",
             f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid", f"--host=unix://{socket}"],
            env={"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
            log=log,
        )  # fmt: skip
        until(
            lambda: socket.exists() and "API listen on" in log.read_text("utf-8"),
            deadline_s=_DAEMON_S,
            awaited=lambda: f"dockerd to listen; its log: {log.read_text('utf-8')}",
        )
        socket.chmod(0o666)  # the nodes' account is not in a group of this machine
        docker = Runtime("docker", {"DOCKER_HOST": f"unix://{socket}"})
        yield docker
        docker.clear()
    finally:
        keeper.close()


@contextlib.contextmanager
def open_podman(folder: Path) -> Iterator[Runtime]:
    """Podman with all its files in `folder`."""
    if not is_root():
        components.unavailable("podman without root needs ranges of user ids on this machine")
    storage, config = folder / "storage.conf", folder / "containers.conf"
    storage.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n', "utf-8")
    # without tmp_dir, podman keeps files in /run/libpod, which the reset empties while the clean-up of a container may still write an event
    engine = f'tmp_dir = "{folder}/tmp"\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\nruntime = "runc"\n'
    config.write_text(f"[engine]\n{engine}", "utf-8")
    # its default limits are above those of many test machines
    limits = ("--ulimit=nofile=16384:16384", "--ulimit=nproc=16384:16384")
    podman = Runtime("podman", {"CONTAINERS_STORAGE_CONF": str(storage), "CONTAINERS_CONF": str(config)}, limits)
    try:
        yield podman
    finally:
        podman.clear()
        podman("system", "reset", "--force")


def image_tar() -> bytes:
    """The tar file of an image with folders, links and the few files by which programs find users and libraries."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name in _FOLDERS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
            tar.addfile(entry)
        for name, target in _LINKS.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
        for name in _FILES:
            if Path("/", name).exists():
                tar.add(f"/{name}", name)
    return data.getvalue()
