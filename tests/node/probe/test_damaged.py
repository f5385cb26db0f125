"""Damaged files of /sys and /proc, and damaged output of tools: facts stay valid, and what cannot be read is missing."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.node.facts import NodeFacts, read_facts
from orchestrator.node.probe.cards import nvidia
from orchestrator.node.probe.source import Source
from tests.grounds import nodes

GARBAGE = (
    b"",
    b"\xff\xfe\x00",
    b"-1",
    b"4",
    b"4: ",
    b"N/A",
    b"nan",
    b"0x",
    b"9" * 400,
    b"\n\n",
    "速率 400".encode(),
    b"9" * 400 + b" Gb/sec",
    b"9" * 400 + b" 1",
    "².".encode(),
    b"1e5 Gb/sec",
)
RAISED = re.compile(r"\w+(Error|Exception)\b")  # in the reason of a step that raised, so that all its facts are lost


def valid(facts: NodeFacts) -> NodeFacts:
    return read_facts(json.loads(json.dumps(facts, allow_nan=False)))


@pytest.mark.parametrize("seed", range(6))
def test_damaged_files_cost_only_their_own_facts(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    machine = (nodes.h800, nodes.roce, nodes.container)[seed % 3](seed % 2)
    machine.write(tmp_path)
    files = [path for path in sorted(tmp_path.rglob("*")) if path.is_file() and not path.is_symlink()]
    for file in chance.sample(files, 60):
        if chance.random() < 0.2:  # an error of the device: reading it fails
            file.unlink()
            file.mkdir()
        else:
            file.write_bytes(chance.choice(GARBAGE))
    facts = valid(nodes.read(machine, tmp_path))
    assert not {key: why for key, why in facts["missing"].items() if RAISED.match(why)}
    assert facts["missing"]
    for hca in facts["hcas"]:
        for port in hca["ports"]:
            assert port["rate"] in (None, 400.0, 200.0, 100.0)


def test_a_file_that_cannot_be_read_is_missing_by_its_path(tmp_path: Path) -> None:
    machine = nodes.h800()
    machine.write(tmp_path)
    port = "/sys/class/infiniband/mlx5_2/ports/1"
    for name, content in (("rate", b"fast\n"), ("gids/0", b"\xff\n"), ("counters/symbol_error", b"many\n")):
        (tmp_path / f".{port}/{name}").write_bytes(content)
    (tmp_path / f".{port}/state").unlink()
    (tmp_path / f".{port}/state").mkdir()
    facts = valid(nodes.read(machine, tmp_path))
    assert facts["missing"] == {
        f"hcas.{port}/state": "Is a directory",
        f"hcas.{port}/rate": "not a rate: 'fast'",
        f"hcas.{port}/gids/0": "not a GID: '\ufffd'",
        f"counters.{port}/counters/symbol_error": "not a number: 'many'",
    }
    found = facts["hcas"][2]["ports"][0]
    assert (found["state"], found["rate"], found["gids"]) == (None, None, [])
    assert "symbol_error" not in found["counters"]


def damaged(text: str, chance: random.Random) -> Iterator[str]:
    """The text with damage of several kinds: cut, empty, another language, other separators, repeated, changed bytes."""
    yield ""
    yield text[: chance.randrange(len(text))]
    yield text.replace(",", ";").replace("|", "│")
    yield text.translate(str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩"))
    yield text.replace(".", ",")
    yield text * 2
    yield "警告 驱动程序版本不匹配\n" + text
    letters = list(text)
    for position in chance.sample(range(len(letters)), min(8, len(letters))):
        letters[position] = chance.choice("\x00\ufffd\n,:|*-7é ")
    yield "".join(letters)


@pytest.mark.parametrize("kind", ["mig", "t20", "s60"])
def test_damaged_output_of_tools_gives_no_wrong_card(tmp_path: Path, kind: str) -> None:
    chance = random.Random(7)
    machine = nodes.KINDS[kind](0)
    machine.files = {path: text for path, text in machine.files.items() if "/0000:" not in path or "vendor" in path}
    machine.write(tmp_path)
    whole = {card["index"]: card for card in nodes.read(machine, tmp_path)["cards"]}
    assert len(whole) == 8
    for command, output in list(machine.tools.items()):
        assert isinstance(output, (str, int))
        for text in damaged(output, chance) if isinstance(output, str) and output.strip() else ():
            machine.tools[command] = text
            facts = valid(nodes.read(machine, tmp_path))
            assert not {key: why for key, why in facts["missing"].items() if RAISED.match(why)}
            for card in facts["cards"]:
                right = whole[card["index"]]
                assert card["memory_total"] in (None, right["memory_total"])
                assert card["pci"] in (None, right["pci"])
        machine.tools[command] = output


def test_fields_that_an_old_driver_refuses_are_left_out(tmp_path: Path) -> None:
    machine = nodes.h800()
    machine.write(tmp_path)
    script = (
        'case "$1" in --query-gpu=*clocks_event_reasons.active*)'
        " echo 'Field \"clocks_event_reasons.active\" is not a valid field to query.'; exit 2 ;;"
        ' --query-gpu=*clocks_throttle_reasons.active*) cat "${0%/*}/answer" ;; *) exit 6 ;; esac'
    )
    tools = tmp_path / "usr" / "bin"
    tools.mkdir(parents=True)
    answer = str(machine.tools["nvidia-smi --query-gpu"]).replace("clocks_event_reasons", "clocks_throttle_reasons")
    (tools / "answer").write_text(answer)
    (tools / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tools / "nvidia-smi").chmod(0o755)
    source = Source(str(tmp_path))
    found = nvidia(source)
    assert isinstance(found["cards"], list)
    assert len(found["cards"]) == 8
    assert found["cards"][0]["health"]["clocks_event_reasons.active"] == "0x0000000000000001"
    assert [tool["error"] for tool in source.tools] == [None]


def test_gpus_without_nvidia_smi_are_those_that_the_driver_shows(tmp_path: Path) -> None:
    machine = nodes.h800()
    machine.tools.clear()
    for slot in (1, 2):
        address = Path(nodes.switch(slot, 0)).name
        uuid = "GPU-????????-????-????-????-????????????" if slot == 1 else "GPU-2da85921-1a58-7e3c-5166-47d742d5fe72"
        machine.files[f"/proc/driver/nvidia/gpus/{address}/information"] = (
            f"Model: \t\t NVIDIA H800\nIRQ:   \t\t 284\nGPU UUID: \t {uuid}\nDevice Minor: \t {slot}"
        )
    machine.files["/sys/module/nvidia/version"] = "550.54.15"
    machine.write(tmp_path)
    facts = valid(nodes.read(machine, tmp_path))
    assert [(card["index"], card["name"], card["pci"]) for card in facts["cards"]] == [
        (0, "NVIDIA H800", "0000:29:00.0"),
        (1, "NVIDIA H800", "0000:3a:00.0"),
    ]
    assert [card["uuid"] for card in facts["cards"]] == [None, "GPU-2da85921-1a58-7e3c-5166-47d742d5fe72"]
    assert facts["software"]["driver"] == "550.54.15"
    assert facts["missing"] == {"cards.nvidia": "nvidia-smi: not found"}
