"""Send an image of containers to nodes that cannot pull it: an archive of it, which each node loads."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.endpoint.access import Terminal, container_of, transport_factory
from orchestrator.endpoint.images import NodeImages
from orchestrator.endpoint.transfer import Files
from orchestrator.errors import NodeError, NodesError, OrchError, UsageError, os_error_text
from orchestrator.fanout import failed_nodes, map_parallel
from orchestrator.inventory.model import Inventory, Node
from orchestrator.node.sending import gigabytes
from orchestrator.portable.names.hostlist import fold
from orchestrator.progress import OnProgress, Progress, Reporter
from orchestrator.records.runs import home_store
from orchestrator.usecases.inventory import load_inventory
from orchestrator.usecases.put import Sender, list_files

if TYPE_CHECKING:
    from orchestrator.node.protocol.transfer import FileEntry

RUNTIMES = ("docker", "podman")
SHORT = 12  # characters of an id, as docker shows it


@dataclass(frozen=True, slots=True)
class Archive:
    """A file of `docker save` or `podman save`."""

    path: Path
    image: str
    """A name in it; its id if it has none."""
    ids: frozenset[str]
    """The ids that runtimes give the image, hexadecimal: the digest of the configuration, or of the manifest."""
    short_id: str

    @classmethod
    def read(cls, path: Path) -> Archive:
        """UsageError if it is no such file."""
        try:
            with tarfile.open(path) as tar:
                manifest = _member(tar, "manifest.json")[0]
                index = _member(tar, "index.json") if "index.json" in tar.getnames() else {}
            config = str(manifest["Config"]).removesuffix(".json").rpartition("/")[2]
            manifests = {str(entry["digest"]).partition(":")[2] for entry in index.get("manifests", ())}
            return cls(path, (manifest.get("RepoTags") or [config])[0], frozenset({config, *manifests}), config[:SHORT])
        except OSError as error:
            raise UsageError(os_error_text(error), hint="get permission to read it") from error
        except (tarfile.TarError, EOFError, LookupError, TypeError, ValueError, AttributeError) as error:
            hint = "make one with docker save IMAGE -o FILE.tar"
            raise UsageError(f"{path} is no archive of an image", hint=hint) from error


def _member(tar: tarfile.TarFile, name: str) -> Any:  # noqa: ANN401  JSON
    file = tar.extractfile(name)
    if file is None:
        raise KeyError(name)
    return json.load(file)


@dataclass(frozen=True, slots=True)
class Pushed:
    """The nodes that have the image now, and those of them that had it before."""

    image: str
    nodes: str
    already: str


def push(
    inventory: str | None,
    names: str | None,
    image: str,
    folder: str | None,
    *,
    on_progress: OnProgress,
    on_remark: Callable[[str], None],
) -> tuple[Pushed, NodesError | None]:
    """
    Bring an image, or an archive of one, to the runtimes of the named nodes, or of all.

    Args:
        image: a name in the docker or podman of this machine, or a file of `docker save`.
        folder: where the archive lies on the nodes until it is loaded; the working folder of each by default.

    Returns:
        The nodes that have the image, and the error of the others. A copy that was made here is kept until all have it.

    Raises:
        UsageError: there is no such image or file here.
    """
    loaded = load_inventory(inventory, names)
    nodes = loaded.select(names)
    clients = {node.name: _client(node) for node in nodes}
    # the nodes themselves, whose Python is not that in their containers
    on_host: Mapping[str, Any] = {"container": None, "python": "python3"}
    hosts = [node if node.container is None else node.model_copy(update=on_host) for node in nodes]
    is_file = Path(image).is_file()
    archive = Archive.read(Path(image)) if is_file else saved(image, [*clients.values()], on_progress)
    push = _Push(loaded, clients, archive, on_progress=on_progress, on_remark=on_remark)
    pushed, failure = push.to(hosts, folder)
    if not is_file and failure is None:
        archive.path.unlink(missing_ok=True)
    return pushed, failure


class _Push:
    """The way of one archive to the runtimes of nodes."""

    def __init__(
        self,
        inventory: Inventory,
        clients: Mapping[str, list[str]],
        archive: Archive,
        *,
        on_progress: OnProgress,
        on_remark: Callable[[str], None],
    ) -> None:
        self._transport_to = transport_factory(
            inventory.transport, inventory.ssh, Terminal(), to_host=True, for_much_data=True
        )
        self._sender = Sender(inventory, self._transport_to, on_progress, on_remark)
        self._clients = clients
        self._archive = archive
        self._on_progress = on_progress
        self._limit = inventory.ssh.fanout

    def to(self, nodes: Sequence[Node], folder: str | None) -> tuple[Pushed, NodesError | None]:
        """Send the archive to the nodes that lack the image, load it there, and remove it."""
        archive, outcomes = self._archive, self._on_each(nodes, self._has, "looking for the image")
        already = [name for name, outcome in outcomes.items() if outcome is True]
        lacking = [node for node in nodes if outcomes[node.name] is False]
        files, _ = list_files([archive.path])
        entry: FileEntry = {**files.entries[0], "path": f"orch-image-{archive.short_id}.tar"}
        folders, failure = self._sender.send(lacking, Files([entry], files.sources), folder)
        outcomes |= {error.node: error for error in (failure.failures if failure else ())}
        paths = {name: f"{path}/{entry['path']}" for name, path in folders.items()}
        loading = [node for node in lacking if node.name in paths]
        outcomes |= self._on_each(
            loading, lambda node, images: self._load(images, paths[node.name]), "loading the image"
        )
        # once all have loaded it: they may share the folder
        self._on_each(loading, lambda node, images: images.remove_file(paths[node.name]), "removing the archive")
        done = [name for name, outcome in outcomes.items() if outcome is True]
        return Pushed(archive.image, fold(done), fold(already)), failed_nodes([*outcomes.values()])

    def _on_each(
        self, nodes: Sequence[Node], work: Callable[[Node, NodeImages], bool], participle: str
    ) -> dict[str, bool | OrchError]:
        def on_runtime(node: Node) -> bool:
            with closing(self._transport_to(node)) as transport:
                return work(node, NodeImages(transport, self._clients[node.name]))

        reporter = Reporter(participle, [node.name for node in nodes], self._on_progress)
        results = map_parallel(nodes, reporter.around(on_runtime), limit=self._limit)
        return {node.name: result for node, result in zip(nodes, results, strict=True)}

    def _has(self, _node: Node, images: NodeImages) -> bool:
        """Return whether the node has the image; if it has it without the name, it gets the name."""
        archive = self._archive
        if images.id_of(archive.image) in archive.ids:
            return True
        found = next((each for each in sorted(archive.ids) if images.id_of(each)), None)
        if found is not None and found != archive.image:
            images.tag(found, archive.image)
        return found is not None

    def _load(self, images: NodeImages, path: str) -> bool:
        images.load(path)
        found = images.id_of(self._archive.image)
        if found not in self._archive.ids:
            text = f"{self._archive.image} has the id {found[:SHORT] or 'of no image'} after loading, not {self._archive.short_id}"
            hint = f"see what `{' '.join(self._clients[images.node])} load --input FILE` prints there"
            raise NodeError(images.node, text, hint=hint)
        return True


def saved(image: str, clients: Sequence[Sequence[str]], on_progress: OnProgress) -> Archive:
    """
    Save an image of this machine to a file in ORCH_HOME, unless an earlier push has left that file.

    Args:
        clients: those of the nodes; their runtimes are tried first.

    Raises:
        UsageError: no runtime of this machine has the image.
    """
    candidates = dict.fromkeys([*(client[-1] for client in clients), *RUNTIMES])
    runtimes = [name for name in candidates if shutil.which(name)]
    if not runtimes:
        hint = "name an archive: FILE.tar of docker save"
        raise UsageError(f"there is no file {image}, and neither docker nor podman here", hint=hint)
    errors = ""
    for runtime in runtimes:
        found = _run([runtime, "image", "inspect", "--format", "{{.Id}} {{.Size}}", image])
        if found.returncode == 0:
            image_id, size = found.stdout.decode().split()
            return _saved(runtime, image, image_id.removeprefix("sha256:")[:SHORT], int(size), on_progress=on_progress)
        errors = errors or found.stderr.decode("utf-8", "replace").strip().splitlines()[-1]
    text = f"{image} is neither a file nor an image of {' or '.join(runtimes)} on this machine: {errors}"
    hint = (
        f"{runtimes[0]} images lists the images; {runtimes[0]} pull {image} fetches it; or name a file of docker save"
    )
    raise UsageError(text, hint=hint)


def _saved(runtime: str, image: str, short_id: str, size: int, *, on_progress: OnProgress) -> Archive:
    folder = home_store().path / "images"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = hashlib.sha256(image.encode()).hexdigest()[:8]  # one image may have several names
    path, part = folder / f"{short_id}-{name}.tar", folder / f"{short_id}-{name}.part"
    if path.exists():
        return Archive.read(path)
    on_progress(Progress(f"saving {image},", 1, 1))
    part.unlink(missing_ok=True)
    try:
        done = _run([runtime, "save", "--output", str(part), image])
        if done.returncode != 0:
            last = (done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            hint = f"it needs {gigabytes(size)} in {folder}; ORCH_HOME names another folder"
            raise OrchError(f"{runtime} save {image}: {last}", hint=hint)
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
        on_progress(Progress(f"saving {image},", 1, 0))
    return Archive.read(path)


def _run(argv: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(argv, check=False, capture_output=True, stdin=subprocess.DEVNULL)


def _client(node: Node) -> list[str]:
    """The client of the runtime on the node itself."""
    container = container_of(node)
    if container is None:
        return ["docker"]
    if container.runtime not in RUNTIMES:
        hint = "copy the .sif file with orch put"
        raise UsageError(f"{node.name}: {container.runtime} has no images to load", hint=hint)
    return container.client
