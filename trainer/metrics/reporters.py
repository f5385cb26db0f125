"""TensorBoard and Weights & Biases: rank 0 sends them the records of metrics.jsonl; both load only if requested."""

from __future__ import annotations

import importlib
import importlib.util
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Protocol, Sequence

from trainer.config.config import TrainConfig
from trainer.errors import UserError
from trainer.metrics.jsonl import read_records

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb"}
FINISH_TIMEOUT_S = 300.0  # limit for the final upload if the network is down; the data stay on disk for `wandb sync`


class ReportError(Exception):
    """A reporter failed; the training continues."""


class Reporter(Protocol):
    """Receives every record of metrics.jsonl once, in order. All methods raise ReportError."""

    def write(self, record: Mapping[str, Any]) -> None:
        """Send the record of one step."""

    def summarise(self, summary: Mapping[str, Any]) -> None:
        """Report the result of the training, after its last step."""

    def flush(self) -> None:
        """Flush to disk as far as a later attempt needs it to miss no step."""

    def close(self, code: int) -> None:
        """End with the exit code of the training; may take a while."""


def missing_package(report: Sequence[str]) -> str:
    """The packages that `report` needs and this node lacks, with the remedy; "" if none."""
    absent = [name for name in report if name in PACKAGES and importlib.util.find_spec(PACKAGES[name]) is None]
    return (
        f"report={','.join(report)}: {' and '.join(absent)} not installed on the node of rank 0: "
        f"pip install {' '.join(absent)} there, or leave it out of report="
        if absent
        else ""
    )


def open_reporters(config: TrainConfig, out: Path, last_step: int, env: Mapping[str, str]) -> List[Reporter]:
    """
    The reporters that config.report names, continuing after `last_step`.
    Raises UserError: a package is broken, or W&B refuses the run: no key, no network, an invalid name.
    """
    found: List[Reporter] = []
    try:
        if "tensorboard" in config.report:
            found.append(TensorBoard(out / "tensorboard", last_step))
        if "wandb" in config.report:
            found.append(WandB(config, out, env))
    except ImportError as exc:
        raise UserError(
            f"report={','.join(config.report)}: installed on the node of rank 0, but broken: {exc}"
        ) from exc
    return found


class TensorBoard:
    """One scalar per number, at its step and time; TensorBoard keeps 32 bits of it."""

    def __init__(self, folder: Path, last_step: int) -> None:
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self._summary = importlib.import_module("tensorboard.compat.proto.summary_pb2").Summary
        # TensorBoard hides what an earlier attempt wrote from this step on.
        self._writer = writer(log_dir=str(folder), purge_step=last_step + 1)

    def write(self, record: Mapping[str, Any]) -> None:
        self._add(_numbers(record), record["step"], record["time"])

    def summarise(self, summary: Mapping[str, Any]) -> None:
        numbers = {f"summary/{key}": value for key, value in summary.items() if not isinstance(value, str)}
        self._add(numbers, summary["steps"], time.time())

    def _add(self, numbers: Mapping[str, float], step: int, at: float) -> None:
        # One event for all numbers: add_scalar for each takes seven times as long.
        values = [self._summary.Value(tag=key, simple_value=value) for key, value in numbers.items()]
        try:
            self._writer.file_writer.add_summary(self._summary(value=values), step, at)
        except OSError as exc:
            raise ReportError(f"tensorboard: {exc}") from exc

    def flush(self) -> None:
        try:
            self._writer.flush()
        except OSError as exc:
            raise ReportError(f"tensorboard: {exc}") from exc

    def close(self, code: int) -> None:  # noqa: ARG002 -- TensorBoard does not show it
        try:
            self._writer.close()
        except OSError as exc:
            raise ReportError(f"tensorboard: {exc}") from exc


class WandB:
    """
    A run named as orch's, WANDB_* as the user has set them; online, or in <out>/wandb when WANDB_MODE=offline.

    At the start it sends the records of metrics.jsonl that W&B lacks: the last ones of a killed attempt or, offline, all of
    them. So no step is missing, and the newest offline folder holds the whole run. W&B never accepts a step twice.
    """

    def __init__(self, config: TrainConfig, out: Path, env: Mapping[str, str]) -> None:
        self._wandb = importlib.import_module("wandb")
        settings = self._wandb.Settings(console="off")  # orch keeps the log
        if hasattr(settings, "finish_timeout"):
            settings.finish_timeout = FINISH_TIMEOUT_S
        try:
            self._run = self._wandb.init(
                dir=env.get("WANDB_DIR", str(out)),
                project=env.get("WANDB_PROJECT", "orch"),
                id=env.get("WANDB_RUN_ID", env.get("ORCH_RUN_ID")),
                name=env.get("WANDB_NAME", env.get("ORCH_RUN_ID")),
                resume="allow",
                config=config.as_dict(),
                settings=settings,
            )
        except (self._wandb.Error, OSError) as exc:
            raise UserError(
                f"report=wandb: {exc}\nset WANDB_API_KEY on the node of rank 0 (in env_file:) or run wandb login there; "
                "without a network, WANDB_MODE=offline"
            ) from exc
        self._first_step = self._run.step
        for record in read_records(out / "metrics.jsonl"):
            self.write(record)

    def write(self, record: Mapping[str, Any]) -> None:
        if record["step"] < self._first_step:
            return
        try:
            self._run.log({**_numbers(record), "time": record["time"]}, step=record["step"])
        except (self._wandb.Error, OSError) as exc:
            raise ReportError(f"wandb: {exc}") from exc

    def summarise(self, summary: Mapping[str, Any]) -> None:
        try:
            # Under separate names: W&B itself stores the last value of every curve there.
            self._run.summary.update({f"summary/{key}": value for key, value in summary.items()})
        except (self._wandb.Error, OSError) as exc:
            raise ReportError(f"wandb: {exc}") from exc

    def flush(self) -> None:
        """Nothing to do: the next attempt sends what is missing."""

    def close(self, code: int) -> None:
        try:
            self._run.finish(exit_code=code)
        except (self._wandb.Error, OSError) as exc:
            raise ReportError(f"wandb: {exc}") from exc


def _numbers(record: Mapping[str, Any]) -> Dict[str, float]:
    """Return the values without step, time and nulls."""
    return {key: value for key, value in record.items() if key not in ("step", "time") and value is not None}
