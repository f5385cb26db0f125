"""Vendors' tools: published output is read exactly; damaged output gives no wrong number and no exception."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.node.vendor import efsmi, nvidia_smi
from tests.paths import CASES

SAMPLES = {path.name: path.read_text("utf-8") for path in (CASES / "vendor").iterdir()}
PARSERS: dict[str, Callable[[str], Any]] = {
    "gpus": nvidia_smi.parse_gpus,
    "compute": nvidia_smi.parse_compute_apps,
    "topo": nvidia_smi.parse_topology,
    "nvlink": nvidia_smi.parse_nvlink_errors,
    "efsmi-q": efsmi.parse_query,
    "efsmi": efsmi.parse_table,
}


def test_two_gpus_are_read_with_all_their_values() -> None:
    read = nvidia_smi.parse_gpus(SAMPLES["gpus-l20.csv"])
    assert read["faults"] == []
    assert [card["index"] for card in read["cards"]] == [0, 1]
    first = read["cards"][0]
    assert (first["bus_id"], first["utilization_percent"], first["memory_used_mib"]) == ("0000:0c:00.0", 0.0, 42248.0)
    assert (first["power_w"], first["state"], first["name"]) == (87.95, "P0", "NVIDIA L20")
    assert first["values"]["power.limit"] == "350.00"


def test_units_and_old_names_of_fields_are_read() -> None:
    read = nvidia_smi.parse_gpus(SAMPLES["gpus-with-units.csv"])
    assert read["faults"] == []
    assert [(card["utilization_percent"], card["power_w"], card["throttle_mask"]) for card in read["cards"]] == [
        (79.0, 813.26, 0),
        (81.0, 850.17, 4),
    ]


def test_missing_values_are_none_and_errors_are_faults() -> None:
    read = nvidia_smi.parse_gpus(SAMPLES["gpus-faulty.csv"])
    not_available, in_error, lost = read["cards"]
    assert (not_available["power_w"], in_error["power_w"], lost["power_w"]) == (None, None, None)
    assert in_error["utilization_percent"] == 99
    assert lost["state"] is None
    assert [fault[:40] for fault in read["faults"]] == [
        "not a row: 'Unable to determine the devi",
        "card 1: power.draw 'ERR!'",
        "card 2: temperature.gpu '[GPU requires r",
    ]


@pytest.mark.parametrize("text", ["", "\n", "No devices were found\n", SAMPLES["nvidia-smi-failed.txt"]])
def test_output_without_a_header_is_a_fault(text: str) -> None:
    read = nvidia_smi.parse_gpus(text)
    assert read["cards"] == []
    assert read["faults"][-1] == "no header of a query"


def test_unknown_fields_are_queried_by_their_old_name_or_left_out() -> None:
    fields = ["index", "clocks_event_reasons.active", "mig.mode.current"]
    refusal = 'Field "clocks_event_reasons.active" is not a valid field to query.\n\n'
    older = nvidia_smi.known_fields(fields, refusal)
    assert older == ["index", "clocks_throttle_reasons.active", "mig.mode.current"]
    refusal = 'Field "mig.mode.current" is not a valid field to query.\n\n'
    assert nvidia_smi.known_fields(older, refusal) == ["index", "clocks_throttle_reasons.active"]
    refusal = 'Field "clocks_throttle_reasons.active" is not a valid field to query.\n\n'
    assert nvidia_smi.known_fields(older, refusal) == ["index", "mig.mode.current"]


def test_processes_are_read_also_with_a_comma_in_a_name() -> None:
    read = nvidia_smi.parse_compute_apps(SAMPLES["compute-apps.csv"])
    assert read["faults"] == []
    assert [(process["pid"], process["name"], process["memory_mib"]) for process in read["processes"]] == [
        (1328667, "/usr/local/bin/python3.10", 130004.0),
        (1425258, None, None),
        (2624394, "chrome --type=gpu-process, --headless", 164.0),
    ]
    assert read["processes"][2]["gpu"] == "GPU-4f31bb83-f8dc-d0af-029e-bc4356e6afeb"


def test_matrix_has_the_names_of_the_nic_legend() -> None:
    read = nvidia_smi.parse_topology(SAMPLES["topo-a100-10-nics.txt"])
    assert read["faults"] == []
    assert (read["links"]["GPU0"]["mlx5_2"], read["links"]["mlx5_9"]["GPU5"]) == ("PXB", "PXB")
    assert read["links"]["GPU0"]["GPU7"] == "NV12"
    assert (read["cpus"]["GPU7"], read["numa"]["GPU7"]) == ("64-127,192-254", 1)


@pytest.mark.parametrize(
    ("name", "gpu", "peer"), [("topo-underlined.txt", "GPU5", "GPU4"), ("topo-old-mlx5.txt", "GPU1", "mlx5_1")]
)
def test_matrix_of_other_drivers_is_read(name: str, gpu: str, peer: str) -> None:
    read = nvidia_smi.parse_topology(SAMPLES[name])
    assert read["faults"] == []
    assert read["links"][gpu][peer] in ("PIX", "NODE")
    assert read["numa"] == {
        f"GPU{index}": int(index > len(read["numa"]) * 2 // 3 - 1) for index in range(len(read["numa"]))
    }


def test_columns_without_a_space_between_them_give_no_cpu_list() -> None:
    # published from a web console: "0-31,64-95" and "0" are one word
    text = SAMPLES["topo-old-mlx5.txt"].replace("0-63\t0\n", "0-630\n")
    read = nvidia_smi.parse_topology(text)
    assert "GPU0" not in read["cpus"]
    assert read["links"]["GPU0"]["mlx5_0"] == "NODE"
    assert read["faults"] == ["GPU0: no CPU and NUMA affinity that can be read: '0-630'"]


def test_rows_that_contradict_each_other_give_no_link() -> None:
    read = nvidia_smi.parse_topology(SAMPLES["topo-old-mlx5.txt"].replace("mlx5_0\tNODE", "mlx5_0\tPHB"))
    assert "mlx5_0" not in read["links"]["GPU0"]
    assert read["faults"] == ["GPU0 to mlx5_0 is NODE, and the reverse is PHB"]


def test_errors_of_nvlink_are_counted_by_link() -> None:
    read = nvidia_smi.parse_nvlink_errors(SAMPLES["nvlink-h100.txt"])
    assert read["faults"] == []
    sound, faulty = read["gpus"].values()
    assert {count for links in sound.values() for count in links.values()} == {0}
    assert (faulty["Replay Errors"]["1"], faulty["CRC Errors"]["17"]) == (12, 1204)


def test_traffic_and_corrected_errors_of_nvlink_5_are_no_errors() -> None:
    lines = (
        "Tx packets: 31",
        "Rx remote Errors: 2",
        "FEC Errors - 0: 77",
        "Effective BER: 15e-255",
        "Symbol BER: 3",
        "Rx Errors: N/A",
    )
    text = "GPU 0: NVIDIA B200 (UUID: GPU-00c0ffee-1)\n" + "".join(f"\t Link 3: {line}\n" for line in lines)
    assert nvidia_smi.parse_nvlink_errors(text) == {
        "gpus": {"GPU-00c0ffee-1": {"Rx remote Errors": {"3": 2}}},
        "faults": [],
    }


def test_counters_after_an_unreadable_title_are_not_those_of_another_gpu() -> None:
    text = SAMPLES["nvlink-h100.txt"]
    for damaged in ("GPU 1; ", "\ufffdPU 1: ", "GPU l: "):
        read = nvidia_smi.parse_nvlink_errors(text.replace("GPU 1: ", damaged))
        assert len(read["gpus"]) == len(read["faults"]) == 1
    joined = nvidia_smi.parse_nvlink_errors(text.replace("\nGPU 1: ", "\n GPU 1: "))
    assert joined == {"gpus": {}, "faults": ["GPU-abcdefab-cdef-abdc-abcd-abababababab has a counter twice"]}


EFSMI = {
    "efsmi-t20.txt": ("1.20.0", "T20", "0000:3d:00.0", 30.0, "Sleep", 48.0, 300.0, 32768.0, "W28001210504"),
    "efsmi-s60.txt": ("1.2.0.301", "S60", "0000:01:00.0", 39.0, "Sleep", 105.0, 300.0, 49120.0, "A073640510015"),
    "efsmi-s60g.txt": ("1.6.3.12", "Enflame S60G", "0000:2e:00.0", 34.0, "LP0", None, None, 23552.0, "A018K30520031"),
    "efsmi-l300.txt": ("1.7.2.14", "Enflame L300", "0000:2d:00.0", 35.0, "LP1", 68.0, 300.0, 147456.0, "A098Q50610048"),
}


@pytest.mark.parametrize("name", EFSMI)
def test_each_table_of_efsmi_is_read(name: str) -> None:
    read = efsmi.parse_table(SAMPLES[name])
    assert read["faults"] == []
    card = read["cards"][0]
    serial = card.get("serial") or card.get("uuid")
    keys = ("name", "bus_id", "temperature_c", "state", "power_w", "power_limit_w", "memory_total_mib")
    assert (read["version"], *map(dict(card).get, keys), serial) == EFSMI[name]
    assert card["utilization_percent"] == 0


@pytest.mark.parametrize("row", ["| -      Sleep    -           | 49120MiB Disable  | 0%          xxx           |"])
def test_card_without_temperature_and_power_is_read(row: str) -> None:
    text = SAMPLES["efsmi-s60.txt"].replace(
        "| 39 C   Sleep    105W  300W | 49120MiB Disable|   0.0%      A073640510015 |", row
    )
    read = efsmi.parse_table(text)
    assert read["faults"] == []
    assert (read["cards"][0]["temperature_c"], read["cards"][0]["power_w"]) == (None, None)


def test_query_of_efsmi_is_read_by_sections() -> None:
    read = efsmi.parse_query(SAMPLES["efsmi-q-s60.txt"])
    assert (read["faults"], read["driver"], len(read["cards"])) == ([], "1.5.20260710", 2)
    card = read["cards"][1]
    assert (card["bus_id"], card["healthy"], card["memory_used_mib"]) == ("0000:0f:00.0", True, 38902.0)
    assert (card["link_generation"], card["link_generation_max"], card["temperature_c"]) == (4.0, 5.0, 34.0)
    assert card["errors"] == {}
    assert card["values"]["Device Info/Dev PN"] == "EFB-0088000-00"


def test_errors_of_a_card_are_counted_by_name() -> None:
    text = SAMPLES["efsmi-q-s60.txt"].replace("DRAM HBM Error          : 0", "DRAM HBM Error          : 3", 1)
    read = efsmi.parse_query(text.replace("Health                  : True", "Health                  : False", 1))
    assert (read["cards"][0]["errors"], read["cards"][0]["healthy"]) == ({"DRAM HBM Error": 3}, False)


@pytest.mark.parametrize("parse", [efsmi.parse_table, efsmi.parse_query])
def test_message_of_efsmi_is_the_fault(parse: Callable[[str], Any]) -> None:
    read = parse(SAMPLES["efsmi-failed.txt"])
    assert (read["cards"], "HAL initialization failed" in read["faults"][0]) == ([], True)


def parser_of(name: str) -> Callable[[str], Any]:
    return next(parse for prefix, parse in PARSERS.items() if name.startswith(prefix))


PARSED = sorted(name for name in SAMPLES if name.startswith(tuple(PARSERS)) and "failed" not in name)


def leaves(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[tuple[object, ...], object]]:
    """The values of a result by path; a card and a process by its index or pid, not its place in a list."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in ("faults", "values"):
                yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item, (*path, item.get("index", item.get("pid"))))
    elif value is not None:
        yield path, value


@pytest.mark.parametrize("name", PARSED)
def test_no_number_is_wrong_in_truncated_output(name: str) -> None:
    parse, text = parser_of(name), SAMPLES[name]
    whole = dict(leaves(parse(text)))
    for size in range(0, len(text), max(1, len(text) // 150)):
        read = parse(text[:size])
        has_legend = not any(fault.startswith("no legend") for fault in read["faults"])
        for path, value in leaves(read):
            assert whole.get(path) == value or not has_legend, (size, path)


@pytest.mark.parametrize("name", PARSED)
def test_no_number_is_wrong_in_output_with_bytes_that_are_not_text(name: str) -> None:
    parse, text = parser_of(name), SAMPLES[name]
    whole = dict(leaves(parse(text)))
    numbers = {path: value for path, value in whole.items() if isinstance(value, (int, float))}
    for at in range(0, len(text), max(1, len(text) // 150)):
        read = dict(leaves(parse(text[:at] + "\ufffd" + text[at + 1 :])))
        for path, value in numbers.items():
            assert read.get(path, value) == value, (at, path)


def test_no_number_is_wrong_in_shuffled_rows_of_a_query() -> None:
    for name in ("gpus-l20.csv", "gpus-faulty.csv", "compute-apps.csv", "topo-a100-10-nics.txt"):
        lines, parse = SAMPLES[name].splitlines(keepends=True), parser_of(name)
        whole = dict(leaves(parse(SAMPLES[name])))
        for seed in range(20):
            shuffled = random.Random(seed).sample(lines, len(lines))
            assert dict(leaves(parse("".join(shuffled)))) == whole, (name, seed)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_damage_to_the_output_gives_a_result_and_never_an_exception(data: st.DataObject) -> None:
    text = SAMPLES[data.draw(st.sampled_from(PARSED))]
    lines = data.draw(st.permutations(text.splitlines(keepends=True)))
    damaged = "".join(lines[: data.draw(st.integers(1, len(lines)))])
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(damaged)))
        damaged = damaged[:at] + data.draw(st.text(max_size=8)) + damaged[at + data.draw(st.integers(0, 5)) :]
    for parse in PARSERS.values():
        read = parse(damaged)
        assert all(isinstance(fault, str) for fault in read["faults"])
        for path, value in leaves(read):
            assert path[-1] != "utilization_percent" or (isinstance(value, float) and 0 <= value <= 100)
