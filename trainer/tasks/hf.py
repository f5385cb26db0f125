"""Causal language models that transformers builds from a local folder, task=hf:PATH, on tokens or chats."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, Iterator, Mapping, Sequence, cast

import torch
from torch.nn import functional

from trainer.config.config import HF_TASK, TrainConfig
from trainer.config.llama_shape import CONFIG_FILE, read_json
from trainer.data.language import LanguageSamples, count_targets, inputs_of, open_language
from trainer.errors import UserError
from trainer.tasks.attention import AttentionShape
from trainer.tasks.base import Task
from trainer.tasks.codecs import tokenizer_codec
from trainer.tasks.continuation import Codec
from trainer.tasks.cross_entropy import IGNORED, Head
from trainer.tasks.lora import add_adapters, frozen_weights
from trainer.tasks.meta import parameters_on_cpu, parameters_on_meta
from trainer.values import Foreign, Model

CONTEXT = 2048  # unless the model allows less
# The models whose packed conversations do not see each other; tests/trainer/tasks/test_hf.py checks each of them.
TYPES = (
    *("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma3_text", "phi3", "olmo2", "granite", "smollm3"),
    *("starcoder2", "gpt_neox"),
)
# The numbers of a config.json that have to be positive: transformers divides by some and builds nonsense of the others.
COUNTS = (
    *(
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    ),
    *("vocab_size", "max_position_embeddings"),
)
SLIDING = "sliding_attention"
"""The kind of layers with a window."""


class HuggingFaceModel(Task):
    """Built of transformers' code and the folder's config.json; code in the folder is never run."""

    def __init__(self, config: TrainConfig, context: int = 0) -> None:
        """
        Args:
            config: all settings; `task` names the folder.
            context: options.context, the tokens of a sample; by default 2048, or as many as the model allows.
        """
        super().__init__(config)
        self.folder = Path(config.task[len(HF_TASK) :]).expanduser()
        self.raw = _read_config(self.folder)
        self.settings = _settings(self.folder, self.raw)
        longest = int(getattr(self.settings, "max_position_embeddings", CONTEXT))
        self.context = context or min(CONTEXT, longest)
        if type(self.context) is not int or not 1 <= self.context <= longest:
            raise UserError(f"options.context={context}: allowed: 1 to {longest}, the longest of {self.folder}")
        self.tokens_per_sample = self.context
        self._frozen: Dict[str, int] = {}
        self.unused_weights = ("*.rotary_emb.inv_freq",)

    def build_model(self) -> torch.nn.Module:
        """
        Build in fp32, with memory that init= or a checkpoint fills.
        Raises UserError: transformers cannot build what the config.json describes.
        """
        return self._build(contextlib.nullcontext())

    def build_unfilled(self) -> torch.nn.Module | None:
        """Adapters have values: no file gives those of a start. Raises as build_model()."""
        return self._build(parameters_on_meta()) if self.config.init else None

    def _build(self, without_memory: ContextManager[None]) -> torch.nn.Module:
        auto = importlib.import_module("transformers").AutoModelForCausalLM
        without_values = importlib.import_module("transformers.initialization").no_init_weights
        with without_values() if self.config.init else contextlib.nullcontext(), without_memory:
            try:
                model: Any = auto.from_config(
                    self.settings, attn_implementation="sdpa", dtype=torch.float32, trust_remote_code=False
                )
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as exc:
                raise UserError(
                    f"task={self.config.task}: {self.folder / CONFIG_FILE}: transformers cannot build it: "
                    f"{type(exc).__name__}: {exc}"
                ) from exc
        model.tie_weights()  # part of what was left out
        add_loss(model)
        keep_buffers(model)
        if self.config.lora.rank:
            with parameters_on_cpu(model):  # peft gives adapters the device of the weights, and values there
                add_adapters(model, self.blocks(model), self.config.lora)
            self._frozen = {name: weight.numel() for name, weight in frozen_weights(model).items()}
        model.train()
        return cast("torch.nn.Module", model)

    def build_data(self, split: str) -> LanguageSamples | None:
        return open_language(
            self.config,
            split,
            context=self.context,
            vocabulary=self.settings.vocab_size,
            folder=self.folder,
            model=self.raw,
        )

    def loss(self, model: Model, batch: torch.Tensor) -> torch.Tensor:
        tokens, targets, positions = inputs_of(batch)
        # transformers separates the conversations by positions that begin again.
        separated: Dict[str, Any] = {} if positions is None else {"position_ids": positions}
        with _packing_known(is_packed=positions is not None):
            loss: torch.Tensor = model(
                input_ids=tokens, target=targets, use_cache=False, return_dict=False, **separated
            )
        return loss

    def codec(self) -> Codec:
        return tokenizer_codec(self.config, self.folder, self.settings.vocab_size)

    def next_logits(self, model: Model, tokens: torch.Tensor, at: int) -> torch.Tensor:
        kept = torch.tensor([at], device=tokens.device)
        with _packing_known(is_packed=False):
            found = model(input_ids=tokens, use_cache=False, return_dict=False, logits_to_keep=kept)
        logits: torch.Tensor = found[0][0, 0]
        return logits

    def count_terms(self, batch: torch.Tensor) -> torch.Tensor:
        return count_targets(batch)

    def attention(self, batch: torch.Tensor) -> AttentionShape:
        """transformers' `sdpa`, which has a mask for packed conversations and for the window of some layers."""
        tokens, _, positions = inputs_of(batch)
        length, shape = tokens.shape[1], self.settings
        # A type without windows keeps such an entry of a config.json, too.
        window = shape.sliding_window if hasattr(type(shape), "sliding_window") else None
        is_cut = window is not None and window <= length
        masked = positions is not None or (is_cut and SLIDING in (getattr(shape, "layer_types", None) or [SLIDING]))
        return AttentionShape(shape.num_attention_heads, self._head_width, length, is_masked=masked)

    def blocks(self, model: torch.nn.Module) -> Sequence[torch.nn.Module]:
        names = getattr(model, "_no_split_modules", None) or ()
        return [module for module in model.modules() if type(module).__name__ in names]

    def ends(self, model: Model) -> Sequence[Sequence[torch.nn.Module]]:  # transformers'
        return [[model.get_input_embeddings()], [model.get_output_embeddings()]]

    def flops_per_sample(self, sizes: Mapping[str, int]) -> int:
        """As for the GPT (trainer/metrics/mfu.py); a tied embedding is multiplied once, as the head. Frozen weights have no gradient."""
        shape = self.settings
        is_tied = getattr(shape, "tie_word_embeddings", False)
        trained, frozen = (
            sum(size for name, size in some.items() if is_tied or "embed" not in name) for some in (sizes, self._frozen)
        )
        attention = shape.num_hidden_layers * shape.num_attention_heads * self._head_width * self.context
        return int((6 * trained + 4 * frozen + 12 * attention) * self.context)

    @property
    def _head_width(self) -> int:
        shape = self.settings
        return int(getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads)


def _read_config(folder: Path) -> Dict[str, Any]:
    """The config.json. Raises UserError: there is none, or it describes a model that is not supported."""
    start = f"task={HF_TASK}{folder}"
    path = folder / CONFIG_FILE
    raw = read_json(path, f"{start}: ", "; name a folder on the nodes: nothing is downloaded")
    if not isinstance(raw, dict) or raw.get("model_type") not in TYPES:
        found = raw.get("model_type") if isinstance(raw, dict) else None
        raise UserError(f"{start}: {path}: model_type={found}: models of type {', '.join(TYPES)} can be trained")
    for key in COUNTS:
        value = raw.get(key)
        if value is not None and (type(value) is not int or value < 1):
            raise UserError(f"{start}: {path}: {key}={json.dumps(value)}: a whole number from 1 on is needed")
    if raw.get("quantization_config"):
        raise UserError(f"{start}: {path}: quantization_config: quantized weights cannot be trained")
    return raw


def _settings(folder: Path, raw: Mapping[str, Any]) -> Foreign:  # a class of transformers
    start = f"task={HF_TASK}{folder}"
    if importlib.util.find_spec("transformers") is None:
        raise UserError(f"{start}: needs the package transformers, which is not installed for {sys.executable}")
    transformers = importlib.import_module("transformers")
    if int(transformers.__version__.partition(".")[0]) < 5:  # noqa: PLR2004 -- its first version
        raise UserError(f"{start}: needs transformers >= 5, here is {transformers.__version__}")
    try:
        return transformers.CONFIG_MAPPING[raw["model_type"]].from_dict(dict(raw))
    except Exception as exc:  # its checks raise classes of several packages
        raise UserError(
            f"{start}: {folder / CONFIG_FILE}: transformers refuses it: {' '.join(str(exc).split())}"
        ) from exc


@contextlib.contextmanager
def _packing_known(*, is_packed: bool) -> Iterator[None]:
    """Within the block, transformers does not read positions to find packed samples: the host would wait for the device."""
    masks: Any = importlib.import_module("transformers.masking_utils")
    name = "find_packed_sequence_indices"
    before = getattr(masks, name, None)
    # the number of each token's conversation
    setattr(masks, name, lambda positions: (positions == 0).cumsum(-1) if is_packed else None)
    try:
        yield
    finally:
        setattr(masks, name, before)


def keep_buffers(model: torch.nn.Module) -> None:
    """Keep the type of buffers, such as frequencies of positions: DeepSpeed converts whole models to bf16, which rounds them."""
    for module in model.modules():
        if any(buffer.is_floating_point() for buffer in module.buffers(recurse=False)):
            module._apply = functools.partial(_apply, module, module._apply)  # type: ignore[method-assign]  # noqa: SLF001


def _apply(
    module: torch.nn.Module, apply: Callable[..., torch.nn.Module], convert: Callable[..., Any], **options: bool
) -> torch.nn.Module:
    """Module._apply(), with which modules are moved and converted."""
    before = dict(module.named_buffers(recurse=False))
    apply(convert, **options)
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.dtype != before[name].dtype:
            setattr(module, name, before[name].to(buffer.device))
    return module


def add_loss(model: Model) -> None:  # changes its class
    """Let the model return the loss when it is called with targets. Names and values of parameters stay."""
    model.get_output_embeddings().__class__ = LogitsOrLoss
    model.__class__ = type(type(model).__name__, (WithLoss, type(model)), {})


class LogitsOrLoss(Head):
    """A head that returns logits, unless there are targets."""

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        return functional.linear(x, self.weight) if target is None else super().forward(x, target)


class WithLoss(torch.nn.Module):
    """A part of the class of a model of transformers: its forward() takes targets as well."""

    config: Any
    base_model: Any
    get_output_embeddings: Any

    def forward(self, *inputs: Any, target: torch.Tensor | None = None, **options: Any) -> Foreign:  # transformers'
        """With int64 targets [batch, length]: the sum of the cross entropies over all but -100, in fp32. `options` has return_dict=False."""
        if target is None:
            return super().forward(*inputs, **options)
        if getattr(self.config, "final_logit_softcapping", None) is not None:
            logits = super().forward(*inputs, **options)[0]
            return functional.cross_entropy(
                logits.float().flatten(0, 1), target.flatten(), ignore_index=IGNORED, reduction="sum"
            )
        x = self.base_model(*inputs, **options)[0]
        scaling = getattr(self.config, "logits_scaling", 1.0)  # granite divides its logits
        return self.get_output_embeddings()(x if scaling == 1.0 else x / scaling, target)
