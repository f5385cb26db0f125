"""Failures under torchrun, DeepSpeed, accelerate, transformers, Lightning and the shared trainer."""

from __future__ import annotations

import json

from bench.failures.provoked import HEAD, Provoked
from bench.workspace import BIN

_TORCHRUN = ("--per-node", "--", str(BIN / "torchrun"), "train.py")
_TRAINER = (
    "model.layers=1",
    "model.width=32",
    "model.heads=2",
    "model.context=32",
    "micro_batch=4",
    "device=cpu",
    "report=",
    "steps=20",
)
_GLOO = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
_ZERO = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}
_DEEPSPEED = f"""{HEAD}
import deepspeed, torch
deepspeed.init_distributed("gloo")
model = torch.nn.Linear(8, 1)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
for step in range(10):
    loss = engine(torch.ones(2, 8)).sum()
    engine.backward(loss)
    engine.step()
    # step
"""
_TRANSFORMERS = f"""{HEAD}
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=32, vocab_size=100))
data = [{{"input_ids": torch.ones(16, dtype=torch.long), "labels": torch.ones(16, dtype=torch.long)}}] * 64
arguments = dict(output_dir=f"out-{{rank}}", max_steps=5, per_device_train_batch_size=2, use_cpu=True, report_to=[], save_strategy="no")
# before
Trainer(model, TrainingArguments(**arguments), train_dataset=data).train()
"""


def _deepspeed(name: str, signature: str, fixed: tuple[str, str], **keys: object) -> Provoked:
    """A training with ZeRO whose configuration has these keys; None takes a key away."""
    config = {key: value for key, value in {**_ZERO, **keys}.items() if value is not None}
    return Provoked(name, _DEEPSPEED.replace("CONFIG", repr(config)), [signature], "config", None, fixed)


def _trainer(
    name: str, signatures: list[str | None], kind: str, *words: str, ranks: tuple[int, ...] | None = None
) -> Provoked:
    """A run of the shared trainer."""
    return Provoked(name, "", signatures, kind, ranks, command=(*_TRAINER, *words))


FRAMEWORKS = (
    _deepspeed("DeepSpeed batch sizes", "ds-batch-sizes", ("'train_batch_size': 32, ", ""), train_batch_size=32, gradient_accumulation_steps=1),
    _deepspeed("DeepSpeed without a batch size", "ds-no-batch-size", ("{'optimizer'", "{'train_micro_batch_size_per_gpu': 2, 'optimizer'"),
               train_micro_batch_size_per_gpu=None),
    _deepspeed("misspelt key of DeepSpeed", "ds-unknown-key", ("'stages'", "'stage'"), zero_optimization={"stages": 1}),
    _deepspeed("fraction as a size of DeepSpeed", "ds-fractional-size", ("0.5", "500000"), zero_optimization={"stage": 1, "reduce_bucket_size": 0.5}),
    Provoked("config file of DeepSpeed is missing", _DEEPSPEED.replace("CONFIG", "'zero-of-the-site.json'"), ["ds-no-config"], "config", None),
    Provoked("key that is twice in the config file of DeepSpeed",
             _DEEPSPEED.replace("CONFIG", "'zero.json'").replace("import deepspeed", f"open('zero.json', 'w').write('{{\"steps_per_print\": 1, \"steps_per_print\": 2, ' + {json.dumps(_ZERO)!r}[1:])\nimport deepspeed", 1),
             ["ds-duplicate-keys"], "config", None, ('"steps_per_print": 1, ', "")),
    Provoked("own error in a training with ZeRO",
             _DEEPSPEED.replace("CONFIG", repr(_ZERO)).replace("# step", "if rank == 1 and step == 3: raise RuntimeError('the data is at its end')"),
             ["python-error"], "code"),
    Provoked("comments in the config of the Trainer of transformers",
             _TRANSFORMERS.replace("# before", "open('zero.json', 'w').write('{\\n // ZeRO\\n \"train_batch_size\": 4}')\narguments['deepspeed'] = 'zero.json'"),
             ["json-comments"], "config", None),
    Provoked("token outside of the vocabulary in the Trainer of transformers",
             _TRANSFORMERS.replace("# before", "if rank == 1: data = [{'input_ids': sample['input_ids'] + 100, 'labels': sample['labels']} for sample in data]"),
             ["index-out-of-range"], "code"),
    Provoked("SIGKILL in the Trainer of transformers",
             _TRANSFORMERS.replace("# before", "from transformers import TrainerCallback\nclass Kill(TrainerCallback):\n    def on_step_end(self, args, state, control, **_):\n"
             "        if rank == 1 and state.global_step == 2: os.kill(os.getpid(), signal.SIGKILL)\narguments_of = [Kill()]").replace("train_dataset=data", "train_dataset=data, callbacks=arguments_of"),
             ["killed"], "unknown"),
    Provoked("bf16 of transformers without a card", f"{HEAD}from transformers import TrainingArguments\nTrainingArguments('out', bf16=True, use_cpu=False)\n",
             ["fp16-without-card"], "config", None, ("use_cpu=False", "use_cpu=True")),
    Provoked("own error under accelerate",
             f"{HEAD}import torch\nfrom accelerate import Accelerator\naccelerator = Accelerator(cpu=True)\nmodel = accelerator.prepare(torch.nn.Linear(8, 1))\n"
             "for step in range(10):\n    accelerator.backward(model(torch.ones(4, 8)).sum())\n    if rank == 1 and step == 3: {}['labels']\n",
             ["python-error"], "code"),
    Provoked("own error under torchrun", f"{HEAD}{_GLOO}if rank == 3: {{}}['input_ids']\ndist.barrier()\n", ["python-error"], "code", (3,),
             ranks_per_node=2, command=_TORCHRUN),
    Provoked("SIGSEGV under torchrun", f"{HEAD}{_GLOO}dist.barrier()\nif rank == 2:\n    import ctypes\n    ctypes.string_at(0)\ndist.barrier()\n",
             ["segmentation-fault"], "code", (2,), ranks_per_node=2, command=_TORCHRUN),
    _trainer("data of the trainer is missing", ["refused-settings"], "config", "data.paths=/data/tokens-of-the-site.bin"),
    _trainer("learning rate at which the trainer diverges", ["not-a-number"], "numbers", "lr=1e20"),
    _trainer("checkpoint of the trainer is missing", ["refused-settings"], "config", "resume=/data/checkpoints-of-the-site/step_10"),
)  # fmt: skip
