"""
One rank of a benchmark, from start to exit.

Rank 0 begins each round, collects the reports of all ranks and writes the results. All of that goes through the store of the
rendezvous, so a group that fails does not end the others.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import socket
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, Dict, Mapping, MutableMapping, NoReturn, Sequence, Set, Tuple

import torch

from trainer.comm.config import ALL, CommConfig
from trainer.comm.groups import Position, Round, rounds
from trainer.comm.measure import Measured, Member, Meter
from trainer.comm.record import Record, rank_rows
from trainer.comm.smoke import check_device, compute
from trainer.console import log_line
from trainer.errors import NetworkError, TrainerError, UserError, report
from trainer.runtime.accelerators import Accelerator, choose
from trainer.runtime.exit import exit_now, exit_on_unexpected_errors, wait_at_most
from trainer.runtime.init import join, prepare
from trainer.runtime.progress import Progress
from trainer.runtime.rank import Rank
from trainer.runtime.rendezvous import JOIN_TIMEOUT_S, Failure, Rendezvous
from trainer.values import JsonValue

RESULTS_FILE = "comm.json"
LEAVE_S = 10.0
JOIN_TIMEOUTS = 8  # gloo waits five times its timeout for a peer that cannot be reached
# Without it, NCCL's watchdog ends the process when an operation takes too long, instead of an exception that can be reported.
BLOCKING_WAIT = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")


def run_rank(config: CommConfig, env: MutableMapping[str, str]) -> NoReturn:
    """Take part in the benchmark as one rank, and end the process. Raises UserError: no launcher, or its variables are wrong."""
    rank = Rank.from_env(env)
    if not rank.launched:
        raise UserError(
            "a benchmark of communication needs several ranks: orch bench comm, or torchrun -m trainer.comm"
        )
    for name in BLOCKING_WAIT:
        env.setdefault(name, "1")
    faulthandler.enable()
    exit_on_unexpected_errors()
    Progress(rank, None).write("init", 0)
    rendezvous, code = None, 0
    try:
        rendezvous = Rendezvous.open(rank, env, JOIN_TIMEOUT_S)
        exit_on_unexpected_errors(rendezvous)
        _Benchmark.open(config, rendezvous).run()
    except TrainerError as exc:
        code = report(exc, env)
        if rendezvous and not exc.is_agreed:
            rendezvous.report_failure(Failure(str(exc), exc.kind, code))
            exit_now(code)
    if rendezvous:
        rendezvous.leave(after_rank_0=code != 0)
    exit_now(code)


class _Benchmark:
    """The rounds of a benchmark on one rank."""

    def __init__(
        self,
        config: CommConfig,
        rendezvous: Rendezvous,
        *,
        accelerator: Accelerator | None,
        device: torch.device,
        reports: Mapping[int, Mapping[str, Any]],
    ) -> None:
        """`accelerator`: None if this rank has none; `reports`: of each rank that has come."""
        self.config, self.rendezvous, self.rank = config, rendezvous, rendezvous.rank
        self.accelerator, self.device, self.reports = accelerator, device, reports
        self.positions = {rank: Position(found["node"], found["local_rank"]) for rank, found in reports.items()}
        self.excluded: Set[int] = {rank for rank, found in reports.items() if found["test"]["error"]}
        self.has_failed = False
        """A group failed in the last round."""
        self.members: Tuple[int, ...] = ()
        """The process group that this rank is in."""
        self.round_limit_s = (len(config.sizes_bytes) + JOIN_TIMEOUTS) * config.timeout
        sound = next((found for found in reports.values() if "backend" in found), {})
        labels = {"torch": torch.__version__, "backend": sound.get("backend", ""), "device": sound.get("device", "")}
        path = (self.rank.run_dir or Path.cwd()) / RESULTS_FILE
        self.record = Record(path, config, rank_rows(reports, self.rank.world_size), labels)
        """Used on rank 0 only."""

    @classmethod
    def open(cls, config: CommConfig, rendezvous: Rendezvous) -> _Benchmark:
        """
        Test and take the device, and learn which ranks are there.
        Raises TrainerError: a rank is missing or has no device, unless `devices` is set: then it is left out.
        """
        rank = rendezvous.rank
        test: Dict[str, Any] = {"error": ""}
        if config.devices and config.device == "cpu":  # it has no driver that could block this process
            test = compute(choose("cpu", torch), torch.device("cpu"))
        elif config.devices:
            test = check_device(config.device, rank.local_rank, config.timeout)
        accelerator, device, problem = None, torch.device("cpu"), ""
        if not test["error"]:  # a device that does not answer would block this rank, too
            accelerator, device, problem = prepare(lambda: choose(config.device, torch), rank)
        if not config.devices:
            rendezvous.check_all("device", problem, accelerator.name if accelerator else "")
        node = rank.node or socket.gethostname()
        mine: Dict[str, Any] = {
            "node": node,
            "local_rank": rank.local_rank,
            "test": {**test, "error": test["error"] or problem},
        }
        mine.update({"backend": accelerator.backend, "device": device.type} if accelerator else {})
        if accelerator and accelerator.needs_address and config.groups != (ALL,):
            raise UserError.agreed(f"groups={','.join(config.groups)}: {accelerator.name} has only groups={ALL}")
        reports = rendezvous.gather("position", mine)
        return cls(config, rendezvous, accelerator=accelerator, device=device, reports=reports)

    def run(self) -> None:
        """Run all rounds. Raises NetworkError: the same on every rank; some measurements failed, and the results name them."""
        planned = rounds(self.config, self.positions)
        progress = Progress(self.rank, len(planned))
        for number, round_ in enumerate(planned):
            progress.write("step", number)
            faulthandler.dump_traceback_later(2 * self.round_limit_s, exit=True)
            if self.has_failed:
                self._leave()
            self.has_failed = self._run(number, round_)
        self._leave()
        failures = self._publish("end", self.record.failures())
        faulthandler.cancel_dump_traceback_later()
        if self.rank.is_main:
            self.record.write()
            log_line(f"results: {self.record.path}")
        if failures:
            raise NetworkError.agreed(failures)
        progress.write("done", len(planned))

    def _run(self, number: int, round_: Round) -> bool:
        """Run one round; returns True, on every rank, if a group failed in it."""
        groups = [tuple(rank for rank in group if rank not in self.excluded) for group in round_.groups]
        groups = [group for group in groups if len(group) > 1]
        group = next((group for group in groups if self.rank.global_rank in group), ())
        stage = f"round-{number}"
        if group:
            measured = self._measure(stage, round_.op, group)
            self.rendezvous.store.set(f"{stage}/{self.rank.global_rank}", json.dumps(list(map(asdict, measured))))
        verdict: Dict[str, Any] = {}
        if self.rank.is_main:
            active = [rank for group in groups for rank in group]
            verdict = self.record.add(round_, groups, self.rendezvous.collect(stage, active, self.round_limit_s))
        verdict = self._publish(f"{stage}/verdict", verdict)
        self.excluded |= set(verdict["excluded"])
        return bool(verdict["has_failed"])

    def _measure(self, stage: str, op: str, group: Tuple[int, ...]) -> Sequence[Measured]:
        assert self.accelerator is not None  # else this rank is excluded
        try:
            self._join(f"{stage}/group/{group[0]}", group)
        except NetworkError as exc:
            return [Measured(0, error=f"cannot join the group: {exc.__cause__}".splitlines()[0])]
        number = group.index(self.rank.global_rank)
        agree = functools.partial(self._agree, f"{stage}/agree/{group[0]}", is_first=number == 0)
        meter = Meter(self.config, self.accelerator, self.device)
        return meter.measure(op, Member(number, len(group), agree))

    def _agree(self, prefix: str, name: str, value: int, *, is_first: bool) -> int:
        """Return the first member's value on all members; RuntimeError if it does not come in time."""
        key, store = f"{prefix}/{name}", self.rendezvous.store
        if is_first:
            store.set(key, str(value))
            return value
        store.wait([key], timedelta(seconds=self.config.timeout))
        return int(store.get(key))

    def _join(self, name: str, group: Tuple[int, ...]) -> None:
        """Join the process group of these ranks, unless this rank is in it."""
        if group == self.members:
            return
        self._leave()
        assert self.accelerator is not None
        timeout = timedelta(seconds=self.config.timeout)
        join(self.accelerator, self.rendezvous, name, group, timeout=timeout)
        self.members = group

    def _leave(self) -> None:
        """Leave the process group; after a failure that may block."""
        if self.members and self.accelerator:
            destroy = self.accelerator.distributed.destroy_process_group
            if self.has_failed:
                wait_at_most(LEAVE_S, destroy)
            else:
                destroy()
        self.members = ()

    def _publish(self, key: str, value: JsonValue) -> JsonValue:
        """Return rank 0's value on every rank."""
        store = self.rendezvous.store
        if self.rank.is_main:
            store.set(key, json.dumps(value))
            return value
        store.wait([key], timedelta(seconds=2 * self.round_limit_s))
        return json.loads(store.get(key))
