"""The hooks of an inventory: the URL of a webhook is read from a private place, checked, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.inventory.hooks import Hook
from orchestrator.inventory.model import load
from orchestrator.plan.make import make_plan
from orchestrator.run import Program, Request
from orchestrator.usecases.launch.transcript import dry_run_text

PATH_OF_URL = "T0K3N"
URL = f"https://chat.example.org/hooks/{PATH_OF_URL}"


def _write(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(mode)


@pytest.mark.parametrize("url", [f"{URL}\n", "http://127.0.0.1:8080/x", "http://localhost/x", "http://[::1]:1/x"])
def test_webhook_must_be_https_or_on_this_machine(tmp_path: Path, url: str) -> None:
    _write(tmp_path / "url", url)
    assert Hook(webhook_file=str(tmp_path / "url")).url({}) == url.strip()
    assert Hook(webhook_variable="CHAT").url({"CHAT": url}) == url.strip()


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("", "$CHAT: it is empty"),
        (f"http://chat.example.org/{PATH_OF_URL}", "$CHAT: the URL begins with http:; allowed: https"),
        (f"http://127.0.0.1.example.org/{PATH_OF_URL}", "begins with http:"),
        (f"file:///etc/{PATH_OF_URL}", "holds no URL"),
        (f"ftp://host/{PATH_OF_URL}", "begins with ftp:"),
        (f"https://host:99999/{PATH_OF_URL}", "holds no URL"),
        (f"https://host/{PATH_OF_URL} more", "holds no URL"),
        (f"{URL}\n{URL}", "holds no URL"),
        (f"https://[host/{PATH_OF_URL}", "holds no URL"),
        (f"https://user:{PATH_OF_URL}@host/", "a user or password before @"),
    ],
)
def test_refused_url_is_not_in_the_error(url: str, cause: str) -> None:
    with pytest.raises(UsageError) as caught:
        Hook(webhook_variable="CHAT").url({"CHAT": url})
    assert cause in str(caught.value)
    assert PATH_OF_URL not in f"{caught.value}{caught.value.hint}"


def test_missing_files_and_programs_are_reported_before_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path / "open", URL, 0o644)
    monkeypatch.setenv("PATH", str(tmp_path))
    hooks = {
        "mode 0644 lets others read it": Hook(webhook_file=str(tmp_path / "open")),
        "No such file": Hook(webhook_file=str(tmp_path / "absent")),
        "there is no program page on this machine": Hook(command=("page", "me")),
        f"no program {tmp_path}/page": Hook(command=(f"{tmp_path}/page",)),
    }
    for cause, hook in hooks.items():
        with pytest.raises(UsageError) as caught:
            hook.require_deliverable({})
        assert cause in str(caught.value)
        assert PATH_OF_URL not in str(caught.value)


def test_plan_and_dry_run_name_the_file_of_a_webhook_and_not_its_url(tmp_path: Path) -> None:
    _write(tmp_path / "url", URL)
    text = "hooks:\n  - {on: [FAILED], webhook_file: url}\n  - {command: [page, me]}\nnodes: [{name: n0}]\n"
    _write(tmp_path / "inventory.yaml", text)
    inventory = load(tmp_path / "inventory.yaml")
    assert inventory.private_files == (str(tmp_path / "url"),)  # not sent to the nodes with the code
    program = Program("executable", ("true",))
    plan = make_plan(inventory, Request("ssh", program), run_id="here-20260102-030405-0abc", bundle="b")
    shown = dry_run_text(plan)
    assert f"# Hook on FAILED: webhook of {tmp_path}/url\n" in shown
    assert "# Hook on DONE, FAILED, STOPPED: command page\n" in shown
    assert PATH_OF_URL not in f"{plan}{shown}"
    job = make_plan(inventory, Request("slurm", program), run_id="here-20260102-030405-0abc", bundle="b")
    assert job.hooks == plan.hooks
    trial = make_plan(inventory, Request("ssh", program, is_trial=True), run_id="here-20260102-030405-0abc", bundle="b")
    assert trial.hooks == ()
