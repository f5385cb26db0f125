"""`python -m trainer.checkpoint`: list checkpoints, verify them, export the weights. Only export needs torch."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
import time
from pathlib import Path
from typing import Iterator, NoReturn, Sequence

from trainer.checkpoint.format import files
from trainer.checkpoint.format.files import DamagedError
from trainer.console import log_line
from trainer.errors import UserError

DAMAGED, INTERRUPTED = 1, 130  # exit codes


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; python -m trainer.checkpoint --help explains more")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m trainer.checkpoint", description="Checkpoints of the trainer.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="list|verify|export")
    for name, text in {
        "list": "what is in a folder, by manifests and sizes; reads no tensor",
        "verify": "read every byte and compare hashes; nothing is moved or changed",
        "export": "the weights as one safetensors file, or as a folder of Hugging Face, torch or peft",
    }.items():
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.add_argument("folder", metavar="FOLDER", type=Path, help="a training's `out`, or one step_N in it")
        if name == "export":
            command.add_argument(
                "target",
                metavar="TARGET",
                nargs="?",
                type=Path,
                help="default: step_N.safetensors, step_N_hf, step_N_dcp or step_N_adapter here",
            )
            command.add_argument(
                "--adapter", action="store_true", help="a folder of peft, of a training with lora.rank"
            )
            command.add_argument("--dcp", action="store_true", help="a folder of torch.distributed.checkpoint")
            command.add_argument("--hf", action="store_true", help="a folder: config.json, safetensors, tokenizer")
            command.add_argument("--precision", choices=("bf16", "fp32"), help="with --hf: of the weights (bf16)")
            command.add_argument(
                "--shape",
                metavar="PATH",
                type=Path,
                help="with --hf: config.json or its folder; default: of the training",
            )
            command.add_argument(
                "--best", action="store_true", help="the checkpoint with the lowest eval_loss, not the newest"
            )
            command.add_argument(
                "--no-ema", action="store_true", help="the weights as trained, not their average (optim.ema)"
            )
    return parser


def _step_folders(folder: Path) -> list[Path]:
    """The step folders in `folder`, or itself if it is one, newest first; at least one."""
    with _reading(folder):
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder")
        folder = folder.resolve()  # `.` has no name
        found = [folder] if files.step_of(folder) is not None else files.newest_first(folder)
    if not found:
        raise UserError(f"{folder}: holds no step_N folder; name the folder that the trainer was given as out=")
    return found


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise UserError(f"{exc.filename or folder}: cannot be read: {exc.strerror}") from exc


def _list(folder: Path) -> int:
    found = _step_folders(folder)
    row = "{:<12} {:>10}  {:<19}  {:<10} {:<10} {:>6}  {}".format
    log_line(row("checkpoint", "MB", "saved", "loss", "eval_loss", "ranks", "strategy"))
    for path in found:
        try:
            manifest = files.read_manifest(path, files.step_of(path))
            files.check_sizes(path, manifest)
        except DamagedError as exc:
            log_line(f"{path.name:<12} damaged: {exc}")
            continue
        saved = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime((path / files.MANIFEST).stat().st_mtime))
        size = sum(file["bytes"] for file in manifest["files"].values())
        ranks, strategy = manifest["world_size"], manifest["config"]["strategy"]
        loss: float | None = manifest["mean_loss"] if manifest.get("mean_loss") is not None else manifest["last_loss"]
        losses = (_digits(loss), _digits(manifest.get("eval_loss")))
        log_line(row(path.name, f"{size / 1e6:.1f}", saved, *losses, ranks, strategy))
    with _reading(folder):
        quarantined = files.quarantined(folder)
    if quarantined:
        log_line(f"{quarantined} more set aside in {folder / 'quarantine'}")
    return 0


def _digits(loss: float | None) -> str:
    return "none" if loss is None else f"{loss:.4f}"


def _verify(folder: Path) -> int:
    code = 0
    for path in _step_folders(folder):
        try:
            files.verify(path, files.step_of(path))
            log_line(f"{path.name}: whole")
        except DamagedError as exc:
            code = DAMAGED
            log_line(f"{path.name}: damaged: {exc}")
    return code


def _best(folder: Path) -> Path:
    found = files.best_evaluated(_step_folders(folder))
    if found is None:
        remedy = "set eval_steps, and save_steps to the same number; or leave out --best"
        raise UserError(f"{folder}: no checkpoint has an eval_loss: {remedy}")
    return found


def _export(request: argparse.Namespace) -> int:
    for option in ("shape", "precision"):
        if getattr(request, option) and not request.hf:
            raise UserError(f"--{option} goes with --hf")
    forms = [form for form in ("adapter", "dcp", "hf") if getattr(request, form)]
    if len(forms) > 1:
        raise UserError(f"{' and '.join(f'--{form}' for form in forms)} write different folders: name one")
    if importlib.util.find_spec("torch") is None:
        raise UserError(f"export needs torch, which is not installed for {sys.executable}")
    # list and verify work without torch
    from trainer.checkpoint.interop.export import export, export_adapter, export_dcp, export_folder

    path = _best(request.folder) if request.best else _step_folders(request.folder)[0]
    target = request.target or Path(f"{path.name}_{forms[0]}" if forms else f"{path.name}.safetensors")
    try:
        if request.hf:
            precision = request.precision or "bf16"
            count = export_folder(path, target, request.shape, precision=precision, averaged=not request.no_ema)
        else:
            write = export_adapter if request.adapter else export_dcp if request.dcp else export
            count = write(path, target, averaged=not request.no_ema)
    except DamagedError as exc:
        raise UserError(f"{path}: damaged: {exc}; name an older one") from exc
    except OSError as exc:
        raise UserError(f"{target}: cannot be written: {exc.strerror}") from exc
    log_line(f"wrote {count} tensors of {path} to {target}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 if a checkpoint is damaged, 2 for a mistake of the user, 130 after Ctrl-C."""
    try:
        request = _parser().parse_args(argv)
        if request.command == "export":
            return _export(request)
        return _list(request.folder) if request.command == "list" else _verify(request.folder)
    except UserError as exc:
        sys.stderr.write(f"error: {exc}\n")
        return exc.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
