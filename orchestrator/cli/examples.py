"""Examples at the end of each command's help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

EXAMPLES: Mapping[str, Sequence[str]] = {
    "submit": ("orch submit -i h800.yaml -- train.py --lr 1e-3", "orch submit -i h800.yaml -j 2x8 -t 1-00 steps=1000"),
    "ssh-launch": ("orch ssh-launch -i h800.yaml -- train.py --lr 1e-3", "orch ssh-launch -i local steps=20"),
    "ladder": ("orch ladder -i h800.yaml -- train.py", "orch ladder --slurm -i h800.yaml --steps 10 -- train.py"),
    "rerun": ("orch rerun latest --nodes n0", "orch rerun gpt lr=1e-4 --max-retries 3"),
    "status": ("orch status", "orch status gpt --watch 2"),
    "top": ("orch top", "orch top gpt --once"),
    "web": ("orch web", "orch web gpt --export gpt.html"),
    "logs": ("orch logs -f", "orch logs gpt --rank 3 --tail 50", "orch logs --node n1 --grep 'NCCL|Error'"),
    "list": ("orch list --last 10", "orch list --state failed --tag night"),
    "metrics": ("orch metrics gpt --output /var/lib/node_exporter/gpt.prom --every 15s",),
    "attach": ("orch attach gpt",),
    "stop": ("orch stop gpt", "orch stop gpt --save --grace 5m"),
    "diagnose": ("orch diagnose", "orch diagnose slurm-1234.out", "orch diagnose gpt --prove"),
    "diff": ("orch diff gpt-20261129-031201-6517 latest",),
    "stats": ("orch stats gpt",),
    "check": ("orch check -i h800.yaml", "orch check -i h800.yaml --nodes n0,n1 --level full"),
    "nodes": ("orch nodes -i h800.yaml",),
    "env": ("orch env -i h800.yaml --node n0 --explain",),
    "lint": ("orch lint -i h800.yaml", "orch lint run.sh README.md --nccl 2.21"),
    "settings": ("orch settings lr",),
    "bench": ("orch bench comm -i h800.yaml --op all-reduce",),
    "bench comm": ("orch bench comm -i h800.yaml -j 2x8", "orch bench comm -i h800.yaml --pairs --png pairs.png"),
    "ssh": ("orch ssh -i h800.yaml n0",),
    "exec": ("orch exec -i h800.yaml -- nvidia-smi -L",),
    "cp": ("orch cp latest:checkpoints results",),
    "put": ("orch put -i h800.yaml data --to /data",),
    "image": ("orch image push -i h800.yaml train:1.2",),
    "image push": ("orch image push -i h800.yaml train:1.2", "orch image push -i h800.yaml train.tar"),
    "tensorboard": ("orch tensorboard gpt",),
    "gc": ("orch gc --dry-run", "orch gc -i h800.yaml --older-than 30d"),
    "inventory": ("orch inventory new h800 > inventory.yaml",),
    "inventory show": ("orch inventory show -i h800.yaml",),
    "inventory validate": ("orch inventory validate -i h800.yaml",),
    "inventory new": ("orch inventory new h800 > inventory.yaml",),
    "inventory import": ("scontrol show node | orch inventory import scontrol > inventory.yaml",),
}
"""Command -> command lines."""


def add_examples(command: click.Command, path: str) -> None:
    """Let the help of a command, and of each command below it, end with examples."""
    lines = EXAMPLES.get(path, ())
    if lines:
        title = "Example" if len(lines) == 1 else "Examples"
        command.epilog = "\n".join(("\b", f"{title}:", *(f"  {line}" for line in lines)))
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            add_examples(each, f"{path} {name}")
