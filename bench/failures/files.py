"""Failures of files and disks: missing, not writable, full, damaged."""

from __future__ import annotations

from functools import partial

from bench.failures.provoked import HEAD, Provoked, on_rank


def _of_rank(
    rank: int, name: str, lines: str, signature: str, kind: str, fixed: tuple[str, str] | None = None
) -> Provoked:
    return Provoked(name, on_rank(rank, lines), [signature], kind, [rank], fixed)


_of_rank_1 = partial(_of_rank, 1)
_MOUNTED = """\
if len(sys.argv) == 1:  # start again where a file system of 1 MiB is mounted for this process alone
    os.makedirs('out', exist_ok=True)
    os.execvp('unshare', ['unshare', '--mount', 'sh', '-c', 'mount -t tmpfs -o {options} tmpfs out && exec "$0" "$@"', sys.executable, __file__, 'mounted'])
"""
_TORCH_SAVE = "import torch\ntorch.save({'weight': torch.ones(1 << 20)}, 'out/step_10.pt')"

FILES = (
    _of_rank_1(
        "missing file",
        "open('tokens-of-the-site.bin')",
        "file-not-found",
        "config",
        ("open(", "open('tokens-of-the-site.bin', 'w').close()\n    open("),
    ),
    _of_rank(0, "missing file of rank 0", "open('/data/missing.bin')", "file-not-found", "config"),
    _of_rank_1(
        "output that may not be written",
        "os.makedirs('out', mode=0o755)\nos.setuid(65534)\nopen('out/step_10.pt', 'w')",
        "permission-denied",
        "config",
        ("open('out/step_10.pt', 'w')", "import tempfile\n    tempfile.TemporaryFile(dir='/tmp')"),
    ),
    _of_rank_1(
        "read-only folder",
        _MOUNTED.format(options="ro") + "open('out/step_10', 'w')",
        "file-system-error",
        "storage",
        ("-o ro", "-o rw"),
    ),
    _of_rank_1("disk full", "open('/dev/full', 'w').write('x' * 100000)", "disk-full", "storage"),
    _of_rank(
        0,
        "disk full while rank 0 writes",
        _MOUNTED.format(options="size=1m") + "open('out/step_10', 'wb').write(bytes(1 << 22))",
        "disk-full",
        "storage",
        ("size=1m", "size=8m"),
    ),
    _of_rank_1(
        "disk full in torch.save",
        _MOUNTED.format(options="size=1m") + _TORCH_SAVE,
        "checkpoint-not-written",
        "storage",
        ("size=1m", "size=8m"),
    ),
    _of_rank_1(
        "truncated checkpoint",
        "import torch\nfor name in ('step_10.pt', 'step_20.pt'): torch.save({'weight': torch.ones(1000)}, name)\n"
        "os.truncate('step_20.pt', 2000)\ntorch.load('step_20.pt')",
        "checkpoint-damaged",
        "storage",
        ("torch.load('step_20.pt')", "torch.load('step_10.pt')"),
    ),
    _of_rank_1(
        "empty checkpoint",
        "import torch\nopen('step_20.pt', 'w').close()\ntorch.load('step_20.pt')",
        "checkpoint-empty",
        "storage",
    ),
    _of_rank_1(
        "damaged safetensors",
        "from safetensors import safe_open\nopen('model.safetensors', 'wb').write(bytes(100))\nsafe_open('model.safetensors', 'pt')",
        "checkpoint-damaged",
        "storage",
    ),
    _of_rank_1(
        "checkpoint with objects",
        "import argparse, torch\ntorch.save({'args': argparse.Namespace(lr=1)}, 'step_10.pt')\ntorch.load('step_10.pt')",
        "weights-only",
        "config",
        ("torch.load('step_10.pt')", "torch.load('step_10.pt', weights_only=False)"),
    ),
    _of_rank_1(
        "comments in JSON",
        "import json\nopen('c.json', 'w').write('{\\n  // micro batch\\n  \"a\": 1}')\njson.load(open('c.json'))",
        "json-comments",
        "config",
        ("// micro batch", ""),
    ),
    Provoked(
        "no config of the model",
        f"{HEAD}from transformers import AutoTokenizer\nAutoTokenizer.from_pretrained('/data/model-of-the-site')\n",
        ["hub-files-missing"],
        "config",
        None,
    ),
    Provoked(
        "tokenizer of the hub without internet",
        f"{HEAD}os.environ['HF_HUB_OFFLINE'] = '1'\nfrom transformers import AutoTokenizer\nAutoTokenizer.from_pretrained('gpt2')\n",
        ["hub-files-missing"],
        "config",
        None,
    ),
)
