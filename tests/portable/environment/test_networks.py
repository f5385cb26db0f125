"""Discovery on networks that people have, from public reports: the variables, and all warnings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from orchestrator.node.facts import Gid, Hca, Interface, NodeFacts, read_facts
from orchestrator.portable.environment.discovery import Discovery, discover
from orchestrator.portable.environment.request import NodeRequest
from orchestrator.portable.findings import Severity
from tests.portable.environment import nodes

CASES = YAML(typ="safe").load(Path(__file__).parents[2] / "cases/networks.yaml")
LAYERS = {"IB": "InfiniBand", "RoCE": "Ethernet"}
LINK_LOCAL = "fe80:0000:0000:0000:0aaa:aaff:feaa:000"


def _lines(case: Mapping[str, Any], key: str, number: int) -> Iterator[str]:
    """The lines of a node, repeated as `for=` asks, with their numbers."""
    found = case.get(key, [])
    for line in found.get(number, []) if isinstance(found, dict) else found:
        span = re.search(r" for=(\d+)-(\d+)", line)
        indexes = range(int(span[1]), int(span[2]) + 1) if span else range(1)
        for index in indexes:
            yield (line.replace(span[0], "") if span else line).replace("{n}", str(number)).replace("{i}", str(index))


def _table(address: str | None, interface: str, index: int) -> list[Gid]:
    """Link-local entries from slot 0 on if there is space, and those of the address before and at `index`."""
    kinds = ("IB/RoCE v1", "RoCE v2")
    table = [(slot, f"{LINK_LOCAL}{slot}", kinds[slot]) for slot in range(min(2, index - 1 if address else 2))]
    if address is not None:
        ip = ip_interface(address).ip
        mapped = f"::ffff:{ip}" if ip.version == 4 else str(ip)
        gid = ip_interface(mapped).ip.exploded
        table += [(index - 1, gid, kinds[0]), (index, gid, kinds[1])]
    return [{"index": slot, "gid": gid, "type": kind, "interface": interface} for slot, gid, kind in table]


def _adapter(line: str, order: int, adapters: Mapping[str, Hca]) -> tuple[Hca, list[Interface]]:
    """An adapter, and its interface if that has an address here."""
    name, switch, layer, rate, *rest = line.split()
    keys = dict(entry.split("=", 1) for entry in rest)
    made = nodes.hca(
        name, {"far": 90, "-": 90}.get(switch) or int(switch), layer=LAYERS.get(layer, layer), rate=float(rate)
    )
    made["pci"], made["node_type"] = f"0000:{order:02x}:00.0", keys.get("type", "CA")
    if switch == "-":
        made["pci"], made["pci_path"], made["numa"] = None, None, None
    if "vf" in keys:
        made["physical_function"] = adapters[keys["vf"]]["pci"]
    port, address = made["ports"][0], keys.get("ip")
    interface = keys.get("net", "")
    made["interfaces"] = [interface] if interface else []
    made["usable"] = keys.get("state") != "HIDDEN"
    port["state"] = keys.get("state", "ACTIVE").replace("HIDDEN", "ACTIVE")
    if address is not None:
        port["gids"] = _table(None if address == "none" else address, interface, int(keys.get("gid", "3")))
    elif "prefix" in keys:
        port["gids"] = [{"index": 0, "gid": f"{keys['prefix']}:0aaa:aaff:feaa:0000", "type": None, "interface": None}]
    if keys.get("ports") == "2":
        made["ports"].append({**port, "port": 2, "state": "DOWN"})
    return made, [nodes.interface(interface, str(ip_interface(address)), speed=float(rate))] if address not in (
        None,
        "none",
    ) else []


def _interface(line: str) -> Interface:
    name, address, *rest = line.split()
    speed = float(rest[0]) if rest and rest[0] != "-" else None
    made = nodes.interface(name, *([] if address == "-" else [str(ip_interface(address))]), speed=speed)
    made["kind"] = rest[1] if len(rest) > 1 else "ethernet"
    return made


def _node(case: Mapping[str, Any], number: int) -> NodeFacts:
    made = nodes.facts(f"n{number}", cards=[nodes.card(index) for index in range(case["cards"])])
    adapters: dict[str, Hca] = {}
    made["interfaces"] = [_interface(line) for line in _lines(case, "interfaces", number)]
    for order, line in enumerate(_lines(case, "hcas", number)):
        adapter, interfaces = _adapter(line, order, adapters)
        adapters[adapter["name"]] = adapter
        made["interfaces"] += interfaces
    for name, state in case.get("changes", {}).get(number, {}).items():
        adapters[name]["ports"][0]["state"] = state
    made["hcas"] = list(adapters.values())
    made["interfaces"].sort(key=lambda interface: interface["name"])  # as in sysfs
    made["names"]["resolved"] = case.get("resolved", {}).get(number, {})
    assert made["software"]["nccl"] is not None
    made["software"]["nccl"]["version"] = case.get("nccl", "2.26.2")
    return read_facts(made)


def _discovered(case: Mapping[str, Any]) -> Discovery:
    facts = {f"n{number}": _node(case, number) for number in (1, 2)}
    (address,) = case.get("addresses", ["10.0.0.{n}"])
    sent = {f"n{number}": NodeRequest(address.replace("{n}", str(number)), case["cards"]) for number in (1, 2)}
    return discover(facts, sent)


@pytest.mark.parametrize("case", CASES, ids=[case["name"].replace(" ", "-") for case in CASES])
def test_variables_are_those_that_an_expert_sets_and_doubts_are_warnings(case: Mapping[str, Any]) -> None:
    found = _discovered(case)
    for position, node in enumerate(("n1", "n2")):
        environment = found.environment(node)
        expected = {
            name: value[position] if isinstance(value, list) else value for name, value in case.get("env", {}).items()
        }
        assert {name: environment.get(name) for name in expected} == expected
        assert environment.keys().isdisjoint(case.get("unset", ()))
    warnings = [str(finding) for finding in found.findings if finding.severity is not Severity.INFO]
    assert len(warnings) == len(case.get("warn", ())), warnings
    for warning, part in zip(warnings, case.get("warn", ()), strict=True):
        assert part in warning


def test_every_case_has_a_source() -> None:
    assert all(case["source"] for case in CASES)
