"""
States kept in the memory of the nodes (memory_steps=K): every rank's last two, and copies of those of another node's ranks.

A state is a sharded checkpoint whose shards are in the folders of memory_file.py. The next attempt uses the newest of which every
rank's part is somewhere, from its own node if possible, and reads no checkpoint from the disk then.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence, Set, Tuple

import torch

from trainer.checkpoint.format import files
from trainer.checkpoint.format.files import Checkpoint
from trainer.checkpoint.format.random_state import restore_random_state
from trainer.checkpoint.format.shards import merged
from trainer.checkpoint.load.compatibility import differences
from trainer.checkpoint.load.sharded import OwnShard
from trainer.checkpoint.load.sharded import load as load_sharded
from trainer.checkpoint.memory.exchange import Exchange, Json, Neighbours, receive_state, send_state
from trainer.checkpoint.memory.host_memory import available_memory
from trainer.checkpoint.memory.memory_file import SLOTS, MemoryFile, files_in
from trainer.checkpoint.save import sharded
from trainer.checkpoint.save.background import Writer
from trainer.config.config import TrainConfig
from trainer.console import log_line
from trainer.errors import UserError
from trainer.parallel.base import Strategy
from trainer.parallel.parts import LocalState
from trainer.runtime.fingerprint import comparable, fingerprint
from trainer.runtime.group import Group
from trainer.runtime.signals import Flag
from trainer.state_keys import MODEL, MOMENTS
from trainer.text import gigabytes

VARIABLE = "ORCH_MEMORY_DIR"


class MemoryStates:
    """Keeps the states of this rank, and finds the one to continue from. At most one is being hashed and copied."""

    def __init__(self, group: Group, config: TrainConfig, folder: Path, data_digest: str) -> None:
        """A collective."""
        self.group, self.config, self.folder, self.data_digest = group, config, folder, data_digest
        assert config.memory_steps is not None
        self.every = config.memory_steps
        self.rank = group.rank.global_rank
        self.nodes = group.gather(f"{group.rank.node} {folder}")
        self.neighbours = Neighbours.of(self.rank, self.nodes)
        self.exchange = Exchange(group) if self.neighbours.target is not None else None
        self.token = group.broadcast_bytes(secrets.token_hex(8).encode()).decode()
        self.mine = [self._file(self.rank, slot) for slot in range(SLOTS)]
        self.copies = {
            source: [self._file(source, slot) for slot in range(SLOTS)] for source in self.neighbours.sources
        }
        self._slot = 0  # of the next state
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._writer = Writer(group)  # hashes
        self._busy: Future[str] | None = None
        self._step = self.kept = 0  # the state under way, and the last one that is complete

    @classmethod
    def open(
        cls, group: Group, config: TrainConfig, data_digest: str | None, env: Mapping[str, str]
    ) -> MemoryStates | None:
        """
        Prepare the folder; None without memory_steps or training data. A collective.
        Raises UserError: on all ranks alike; there is no folder for it, or other users may read or write it.
        """
        if config.memory_steps is None or data_digest is None:
            return None

        def folder() -> Path:
            path = Path(env.get(VARIABLE, ""))
            if VARIABLE not in env:
                raise UserError(
                    f"memory_steps={config.memory_steps}: ${VARIABLE} is not set: start the training by orch, whose agents "
                    "remove the memory when the run ends"
                )
            try:
                path.mkdir(mode=0o700, exist_ok=True)
                problem = files.trust_problem(path.lstat()) or ("it is a link" if path.is_symlink() else "")
            except OSError as exc:
                problem = exc.strerror or str(exc)
            if problem:
                raise UserError(f"memory_steps={config.memory_steps}: {path}: {problem}")
            return path

        return cls(group, config, group.on_all(folder), data_digest)

    def check_space(self, state: LocalState) -> None:
        """
        Check that the memory of every node can hold the states; a collective.
        Raises UserError: on all ranks alike; it cannot.
        """
        tensors, _ = sharded.own_tensors(self.group, state, keep_copies=True)
        of_kind = {kind: _bytes_of(tensors, kind) for kind in (MODEL, MOMENTS[0])}
        weights = of_kind[MODEL] * (2 if self.config.optim.ema else 1)
        shard = weights + 2 * (of_kind[MOMENTS[0]] or of_kind[MODEL])
        sizes = self.group.gather(shard)
        needed = SLOTS * sum(
            sizes[rank] + sum(sizes[source] for source in Neighbours.of(rank, self.nodes).sources)
            for rank, node in enumerate(self.nodes)
            if node == self.nodes[self.rank]
        )
        used = sum(path.stat().st_size for path in self.folder.glob("*.safetensors"))
        free = min(shutil.disk_usage(str(self.folder)).free, available_memory()) + used
        problem = ""
        if free < needed:
            problem = (
                f"memory_steps={self.every}: {self.folder} on {self.group.rank.node} has {gigabytes(free)} of memory free, "
                f"{gigabytes(needed)} are needed for two states of each rank and the copies for another node: "
                "leave memory_steps out, or use more nodes"
            )
        self.group.raise_if_any(problem)

    def is_due(self, step: int, flags: Flag) -> bool:
        """The state after `step` is kept; the same on every rank."""
        return step % self.every == 0 and not flags & Flag.KEEPING

    def poll(self) -> Flag:
        """Return KEEPING while a state is being hashed and copied."""
        if self._busy is None:
            return Flag.NONE
        if not self._busy.done():
            return Flag.KEEPING
        self.finish()
        return Flag.NONE

    def finish(self) -> None:
        """Wait for the state being hashed and copied, if any; a problem costs this state only."""
        if self._busy is None:
            return
        problem, self._busy = self._busy.result(), None
        if problem:
            log_line(f"WARNING: rank {self.rank}: the state at step {self._step} is not kept in memory: {problem}")
        else:
            self.kept = self._step

    def forget(self) -> None:
        """Remove all states of this rank, and its copies of others: the training has returned to an earlier step."""
        self.finish()
        for file in sum(self.copies.values(), self.mine):
            file.forget()

    def keep(self, step: int, state: LocalState, *, random_state: bytes, metadata: Mapping[str, Any]) -> None:
        """Copy the state; the rest is done while training continues."""
        file, self._step, size, problem = self.mine[self._slot], step, 0, ""
        file.forget()
        tensors, intervals = sharded.own_tensors(self.group, state, keep_copies=True)
        try:
            size = file.memory.fill(tensors)
            self.group.accelerator.synchronize()
        except OSError as exc:
            problem = str(exc)
        common = comparable([part.tensor for part in state.parts if part.is_replicated])
        record = {
            **metadata,
            **sharded.state_metadata(state),
            "save": f"{self.token}-{step}",
            "size": size,
            "tensors": intervals,
            "rng": random_state.decode(),
            "replica": fingerprint(common) if common else "",
        }
        digest = self._writer.request(do="hash", path=str(file.path), size=size)
        self._busy = self._thread.submit(self._complete, file, record, digest, problem)
        self._slot = (self._slot + 1) % SLOTS

    def _complete(self, file: MemoryFile, record: Json, digest: Future[Json], problem: str) -> str:
        """Seal the state and exchange copies, in a thread; returns the problem, or "". An empty message stands for no state."""
        answer = digest.result()
        problem = problem or answer.get("problem", "")
        if not problem:
            record = {**record, "sha256": answer["sha256"]}
            problem = file.write_record(record)
        if self.exchange is None or self.neighbours.target is None:
            return problem
        try:
            sent = send_state(self.exchange, self.neighbours.target, file, {} if problem else record)
            for source in self.neighbours.sources:
                problem = receive_state(self.exchange, source, self.copies[source]) or problem
            for work, _ in sent:
                work.wait()
        except (OSError, RuntimeError) as exc:  # the latter from torch, if the other rank has ended
            problem = problem or str(exc)
        return problem

    def load(self, strategy: Strategy, load_newer: Callable[[int], Json | None]) -> Json | None:
        """
        Load the newest state that is whole, unless there is a newer checkpoint; a collective.

        Args:
            strategy: gets the state.
            load_newer: loads a checkpoint that is whole and newer than a step, if there is one, and returns its manifest.

        Returns:
            The record of this rank, or that manifest; None if nothing is loaded.

        Raises:
            UserError: on all ranks alike; a verified state cannot be loaded.
        """
        record, offers = None, self._offers()
        while record is None:
            chosen = choose(offers, self.group.rank.world_size)
            if chosen is None:
                break
            record = load_newer(chosen[0].step)
            if record is None:
                refused = self._verify(chosen) or self._move(chosen)
                record = None if refused else self._load(chosen, strategy)
                offers = [offer for offer in offers if (offer.node, offer.rank, offer.slot) not in refused]
        self._remove_others()
        return record

    def _offers(self) -> List[Offer]:
        """The states that each rank sees in the memory of that node and that fit, of all ranks."""
        found, problems = [], []
        for file, record, problem in files_in(self.folder, self.group.accelerator):
            if record is None or problem or self._misfit(record):
                problems.append(problem or f"{file.path}: {self._misfit(record or {})}")
                continue
            found.append([file.rank, file.slot, record["save"], record["step"], record["replica"]])
        answers = self.group.gather([found, problems])
        if self.group.rank.is_main:
            for problem in sorted({problem for _, texts in answers for problem in texts}):
                log_line(f"WARNING: a state in memory is not used: {problem}")
        return [
            Offer(holder, self.nodes[holder], *offer) for holder, (offers, _) in enumerate(answers) for offer in offers
        ]

    def _remove_others(self) -> None:
        """Remove the files of ranks that this node had in an earlier attempt, and has neither states nor copies of; a collective."""
        self.group.gather_bytes(b"")  # every rank has what it needs
        here = {rank for rank, node in enumerate(self.nodes) if node == self.nodes[self.rank]}
        kept = here.union(*(Neighbours.of(rank, self.nodes).sources for rank in here))
        for path in self.folder.glob("r*-?.*"):
            rank = path.stem[1:].partition("-")[0]
            if rank.isdigit() and int(rank) not in kept:
                with contextlib.suppress(FileNotFoundError):  # another rank of this node has removed it
                    path.unlink()

    def _misfit(self, record: Mapping[str, Any]) -> str:
        """Return why the record is of another training, or ""."""
        if record.get("world_size") != self.group.rank.world_size:
            return f"it is of {record.get('world_size')} ranks"
        changed = differences(record["config"], self.config.as_dict())
        if changed or record["data_sha256"] != self.data_digest:
            return f"it is of other settings or data: {', '.join(changed.values())}"
        return ""

    def _verify(self, chosen: Sequence[Offer]) -> Set[Tuple[str, int, int]]:
        """Let each rank hash the parts that it provides; returns node, rank and slot of the damaged ones, the same on all ranks."""
        problems: List[Tuple[str, int, int, str]] = []
        for offer in chosen:
            if offer.holder == self.rank:
                file = self._file(offer.rank, offer.slot)
                problem = file.verify(file.read_record() or {"size": 0, "sha256": ""})
                if problem:
                    problems.append((offer.node, offer.rank, offer.slot, problem))
        return self._agreed(problems, "is damaged and not used")

    def _agreed(self, problems: Sequence[Tuple[str, int, int, str]], outcome: str) -> Set[Tuple[str, int, int]]:
        """Log the problems of all ranks; returns node, rank and slot of each."""
        found = [problem for of_rank in self.group.gather(problems) for problem in of_rank]
        if self.group.rank.is_main:
            for *_, problem in found:
                log_line(f"WARNING: a state in memory {outcome}: {problem}")
        return {(node, rank, slot) for node, rank, slot, _ in found}

    def _load(self, chosen: Sequence[Offer], strategy: Strategy) -> Json:
        """Load this rank's part, which is on this node."""
        mine = self._file(self.rank, chosen[self.rank].slot)
        record = mine.read_record()
        assert record is not None  # it is verified
        self._slot = (mine.slot + 1) % SLOTS  # the loaded one stays until the next is complete
        manifest = {**record, "tensors": merged(self.group.gather(record["tensors"]))}
        found = Checkpoint(mine.path, manifest)
        keep_scale = self.config.precision == "fp16"
        keep_ema, source = bool(self.config.optim.ema), OwnShard(found, self.rank)
        load_sharded(self.group, found, strategy, keep_scale=keep_scale, keep_ema=keep_ema, source=source)
        if self.group.rank.is_main:
            moved = [offer.rank for offer in chosen if offer.holder != offer.rank]
            copies = f", of rank {', '.join(map(str, moved))} from copies on other nodes" if moved else ""
            log_line(f"resuming from memory, step {record['step']}{copies}")
        restore_random_state(json.loads(record["rng"]), self.group.accelerator)
        return record

    def _move(self, chosen: Sequence[Offer]) -> Set[Tuple[str, int, int]]:
        """
        Send each part that its rank does not have from the rank that holds it; a collective.

        Returns:
            Node, rank and slot of what cannot be used, the same on all ranks: if a part could not be moved, also what the moved ones replaced.
        """
        moved = [offer for offer in chosen if offer.holder != offer.rank]
        if moved:
            self.exchange = self.exchange or Exchange(self.group)
        problems: List[Tuple[str, int, int, str]] = []
        for offer in moved:
            problem = self._move_one(self.exchange, offer) if self.exchange else ""
            if problem:
                problems.append((offer.node, offer.rank, offer.slot, problem))
        refused = self._agreed(problems, "cannot be moved to its rank") if moved else set()
        return refused | {(self.nodes[offer.rank], offer.rank, offer.slot) for offer in moved} if refused else refused

    def _move_one(self, exchange: Exchange, offer: Offer) -> str:
        """Returns the problem, or ""."""
        problem = ""
        if self.rank == offer.holder:
            with contextlib.closing(self._file(offer.rank, offer.slot)) as file:
                for work, _ in send_state(exchange, offer.rank, file, file.read_record() or {}):
                    work.wait()
        elif self.rank == offer.rank:
            slots = [self._file(offer.rank, slot) for slot in range(SLOTS)]
            problem = receive_state(exchange, offer.holder, slots)
            file = slots[offer.slot]
            file.close()
            problem = problem or file.verify(file.read_record() or {"size": 0, "sha256": ""})
        return problem

    def _file(self, rank: int, slot: int) -> MemoryFile:
        return MemoryFile(self.folder, rank, slot, self.group.accelerator)


@dataclass(frozen=True)
class Offer:
    """The part of rank `rank` of a state, which rank `holder` sees in the memory of the node; `save` names the state, `replica` its fingerprint."""

    holder: int
    node: str
    rank: int
    slot: int
    save: str
    step: int
    replica: str


def choose(offers: Sequence[Offer], world_size: int) -> List[Offer] | None:
    """
    Return the parts of the newest whole state, in the order of the ranks; None if there is none.

    A part of which the rank itself holds one is preferred. A state whose replicas differ is not whole.
    """
    saves: Dict[Tuple[int, str], Dict[int, Offer]] = {}
    for offer in sorted(offers, key=lambda offer: offer.holder != offer.rank):
        saves.setdefault((offer.step, offer.save), {}).setdefault(offer.rank, offer)
    for _, parts in sorted(saves.items(), reverse=True):
        is_whole = sorted(parts) == list(range(world_size)) and len({part.replica for part in parts.values()}) == 1
        if is_whole:
            return [parts[rank] for rank in range(world_size)]
    return None


def _bytes_of(tensors: Mapping[str, torch.Tensor], kind: str) -> int:
    start = f"{kind}/"
    return sum(tensor.numel() * tensor.element_size() for key, tensor in tensors.items() if key.startswith(start))
