"""The guard of cards: which launches a living run of the same user refuses, and how a launch waits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, cast

import pytest

from orchestrator.code.bundle import Bundle
from orchestrator.endpoint import holders as beside
from orchestrator.endpoint.holders import Holder, holders_beside
from orchestrator.errors import LaunchError, PreflightRefused, UsageError
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launch import held_cards
from orchestrator.launch.held_cards import require_free
from orchestrator.launch.planned import Planned
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import NodePlan
from orchestrator.run import Program, Request, RunRecord
from orchestrator.transports.container import ContainerTransport
from orchestrator.transports.terminal import Terminal
from orchestrator.usecases.launch_arguments import LaunchArguments

PROGRAM = Program("executable", ("a",))
BIG = "big-20260101-010203-0abc"


def _holder(kind: str = "cuda", visible: str | None = None, ranks: int = 2) -> Holder:
    return Holder(BIG, "h0", 1_760_000_000.0, ranks, kind, visible)


class _Launcher:
    """Two nodes: n0 answers with the next of these lists of holders, the last one for ever; n1 has none."""

    def __init__(self, *answers: Sequence[Holder], cards: Mapping[str, int] | None = None) -> None:
        self.answers, self.cards = list(answers), cards or {}
        self.queries = 0

    def reach(self, node: NodePlan) -> SimpleNamespace:
        return SimpleNamespace(facts=SimpleNamespace(cards=self.cards), holders=lambda: self._holders(node.name))

    def _holders(self, name: str) -> Sequence[Holder]:
        self.queries += 1
        if name != "n0":
            return []
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def _planned(
    accelerator: Literal["cuda", "cpu", "auto"] = "cuda",
    devices: int = 2,
    env: Mapping[str, str] | None = None,
    program: Program = PROGRAM,
    **fields: object,
) -> Planned:
    nodes = tuple(
        Node(name=name, accelerator=accelerator, devices=devices, env=dict(env or {})) for name in ("n0", "n1")
    )
    inventory = Inventory(name="here", nodes=nodes)
    plan = make_plan(inventory, Request("ssh", program), run_id="here-20260102-030405-0abc", bundle="b")
    record = cast("RunRecord", SimpleNamespace(is_trial=False, inventory={"file": "a b.yaml"}))
    planned = Planned(plan, cast("Bundle", None), record, (), (), Terminal(), {})
    return replace(planned, **fields)  # type: ignore[arg-type]


def _check(planned: Planned, launcher: _Launcher, *, stopped: bool = False) -> list[str]:
    warnings: list[str] = []
    require_free(planned, cast("DirectLauncher", launcher), warnings.append, is_stopped=lambda: stopped)
    return warnings


def test_refusal_names_node_run_cards_time_and_the_next_steps() -> None:
    with pytest.raises(PreflightRefused) as refused:
        _check(_planned(), _Launcher([_holder()]))
    assert f"n0: run {BIG} (big) holds 2 cards since 2025-10-09" in str(refused.value)
    assert refused.value.exit_code == 3
    assert refused.value.hint.startswith(f"orch stop {BIG} -i 'a b.yaml'; --wait-free SPAN")
    assert "--share" in refused.value.hint


@pytest.mark.parametrize(
    ("holder", "env", "devices", "is_refused"),
    [
        (_holder(), {}, 1, True),
        (_holder(visible="4,5"), {}, 4, False),
        (_holder(visible="3"), {}, 4, True),
        (_holder(), {"CUDA_VISIBLE_DEVICES": "2,3"}, 2, False),
        (_holder(visible="2, 3"), {"CUDA_VISIBLE_DEVICES": "3"}, 1, True),
        (_holder(visible=""), {}, 2, False),
        (_holder(), {"CUDA_VISIBLE_DEVICES": "-1"}, 2, False),
        (_holder(visible="GPU-a,GPU-b"), {"CUDA_VISIBLE_DEVICES": "GPU-c"}, 1, False),
        (_holder(visible="GPU-a"), {"CUDA_VISIBLE_DEVICES": "GPU-a"}, 1, True),
        (_holder(visible="GPU-a"), {}, 1, True),  # which index that is, is not known
        (_holder(kind="gcu"), {}, 2, False),
        (_holder(), {"TOPS_VISIBLE_DEVICES": "7"}, 2, True),
    ],
)
def test_cards_are_compared_by_the_variable_that_selects_them(
    holder: Holder, env: Mapping[str, str], devices: int, *, is_refused: bool
) -> None:
    planned = _planned(env=env, devices=devices)
    if is_refused:
        with pytest.raises(PreflightRefused):
            _check(planned, _Launcher([holder]))
    else:
        assert _check(planned, _Launcher([holder])) == []


def test_run_that_is_recorded_here_is_stopped_without_an_inventory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    (tmp_path / "runs" / BIG).mkdir(parents=True)
    with pytest.raises(PreflightRefused) as refused:
        _check(_planned(), _Launcher([_holder()]))
    assert refused.value.hint.startswith(f"orch stop {BIG}; --wait-free SPAN")


def test_runs_that_use_no_cards_query_no_node() -> None:
    trainer = Program("trainer", ("device=cpu",))
    for planned in (_planned("cpu"), _planned("auto"), _planned(program=trainer), _planned(shares_cards=True)):
        launcher = _Launcher([_holder()])
        assert (_check(planned, launcher), launcher.queries) == ([], 0)
    with pytest.raises(PreflightRefused):
        _check(_planned("auto"), _Launcher([_holder()], cards={"cuda": 8}))


def test_own_run_and_later_attempts_are_no_obstacle() -> None:
    planned = _planned()
    this_run = replace(_holder(), run=planned.plan.run_id)
    assert _check(planned, _Launcher([this_run])) == []
    assert _check(replace(planned, plan=replace(planned.plan, attempt=2)), _Launcher([_holder()])) == []


def test_wait_is_announced_once_and_ends_when_the_cards_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_cards, "POLL_S", 0.0)
    launcher = _Launcher([_holder()], [_holder()], [])
    [warning] = _check(_planned(wait_free_s=60.0), launcher)
    assert warning.startswith("waits until 20")
    assert f"n0: run {BIG} (big) holds 2 cards since" in warning


def test_wait_ends_at_its_limit_and_by_a_stop() -> None:
    with pytest.raises(PreflightRefused, match=r"also after 0 s \(--wait-free\)"):
        _check(_planned(wait_free_s=0.0), _Launcher([_holder()]))
    with pytest.raises(LaunchError, match="the run was stopped while it waited"):
        _check(_planned(wait_free_s=60.0), _Launcher([_holder()]), stopped=True)


def test_hint_of_a_trial_names_no_option_that_it_lacks() -> None:
    record = cast("RunRecord", SimpleNamespace(is_trial=True, inventory={"file": ""}))
    with pytest.raises(PreflightRefused) as refused:
        _check(_planned(record=record), _Launcher([_holder()]))
    assert refused.value.hint == f"wait for its end, or orch stop {BIG} -i FILE"


def test_options_that_contradict_each_other_are_refused() -> None:
    arguments = LaunchArguments("ssh", None, None, None, None, (), ("true",), share=True, wait_free="1h")
    with pytest.raises(UsageError, match="--wait-free and --share exclude each other"):
        _ = arguments.wait_free_s
    with pytest.raises(UsageError, match="--wait-free soon: not a time span"):
        _ = replace(arguments, share=False, wait_free="soon").wait_free_s


def test_answer_of_the_node_beside_a_container_is_read_without_what_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"started": 900, "ranks": [0, 1], "cards": {"kind": "gcu", "visible": None}}
    records = [json.dumps(good), json.dumps({**good, "cards": None}), "{", "[]", json.dumps({"cards": good["cards"]})]
    log = f"/w/runs/{BIG}/attempt-1/h0/agent.log"
    printed = "1000\n" + "".join(f"{log}\n{record}\n" for record in records)
    answers = [printed, "", "sh: no date"]
    monkeypatch.setattr(beside, "output_on_node", lambda *_: (0, answers.pop(0), ""))
    monkeypatch.setattr("time.time", lambda: 1000.0)
    transport = cast("ContainerTransport", None)
    assert holders_beside(transport) == [Holder(BIG, "h0", 900.0, 2, "gcu", None)]
    assert holders_beside(transport) == []
    assert holders_beside(transport) == []
