"""Messages of torch_gcu and ECCL, of the T20 and of torch_gcu 2.10."""

from __future__ import annotations

from orchestrator.diagnosis.signature import Signature, root, symptom

_T20 = "torch_gcu of the T20"
_GCU = "torch_gcu 2.10"

ENFLAME: tuple[Signature, ...] = (
    root("gcu-only-eccl", r"only support eccl", "config", "torch_gcu.distributed was initialised with another backend than eccl", "init_process_group('eccl'), or torch.distributed with gloo", sample="RuntimeError: only support eccl", near="eccl is supported", source=_T20),
    root("gcu-no-eccl", r"import ProcessGroupECCL failed", "config", "ECCL is not installed", "install TopsRider with `-C tops-eccl`", "use the backend gloo until then", sample="import ProcessGroupECCL failed", near="import ProcessGroupECCL", source=_T20),
    root("gcu-device", r"Expected a gcu device, but got: (?P<device>\S+)", "code", "a tensor or model is on {device}, which this build of torch_gcu does not take", "on a T20 the device is xla:LOCAL_RANK, on newer cards gcu:LOCAL_RANK", literal="Expected a gcu device", sample="RuntimeError: Expected a gcu device, but got: cuda", near="Found a gcu device", source=_T20),
    root("gcu-bucket-view", r"dtu not support `gradient_as_bucket_view` set to True", "code", "the card does not support gradient_as_bucket_view", "DistributedDataParallel(model, gradient_as_bucket_view=False)", sample="dtu not support `gradient_as_bucket_view` set to True", near="gradient_as_bucket_view is False", source=_T20),
    root("gcu-no-driver", r"Found no ENFLAME driver on your system|ENFLAME driver on your system is too old|GCU driver initialization failed", "config", "the Enflame driver is missing, too old, or sees no card", "efsmi: must list the cards", "an admin installs the driver of the TopsRider version that is used", literal=("Found no ENFLAME driver", "ENFLAME driver on your system is too old", "GCU driver initialization failed"),
        sample=("Found no ENFLAME driver on your system. Please check that you have an ENFLAME GCU and installed a driver", "The ENFLAME driver on your system is too old (found version 1.2)", "GCU driver initialization failed, you might not have a gcu."), near="Found ENFLAME driver 1.2.3", source=_GCU),
    root("gcu-setup", r"GCU unknown error - this may be due to an incorrectly set up environment", "config", "TOPS_VISIBLE_DEVICES was changed after the program had started, or the environment is incomplete", "set TOPS_VISIBLE_DEVICES before the program starts: env: in the inventory", sample="GCU unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable TOPS_VISIBLE_DEVICES after program start", near="GCU environment is set up", source=_GCU),
    root("gcu-oom", r"GCU out of memory\. Tried to allocate|topsMalloc.*failed", "memory", "the memory of the card is full", "a smaller batch, gradient checkpointing, or ZeRO", "efsmi: shows if another process uses the card", literal=("GCU out of memory", "topsMalloc"), sample=("GCU out of memory. Tried to allocate 2.00 GiB. GCU 0 has a total capacity of 32.00 GiB", "topsMalloc 4096 bytes failed"), near="GCU memory: 2.00 GiB", source=f"{_GCU}; OntoThink_V4"),
    symptom("eccl-error", r"ECCL error in: .*eccl(?P<error>SystemError|UnhandledTopsError|InternalError|InvalidArgument)", "network", "a call of ECCL failed: {error}", "ECCL_DEBUG=INFO: the lines before it then have the reason", literal="ECCL error in:", sample="RuntimeError: ECCL error in: ProcessGroupECCL.cpp:100, ecclSystemError", near="no ECCL error", source=_GCU),
    root("gcu-dense", r"Tensors must be GCU and dense", "code", "a tensor for a collective operation of ECCL is on the CPU, or sparse", "tensor.to('gcu') before the collective operation", sample="RuntimeError: Tensors must be GCU and dense", near="Tensors are dense", source=_GCU),
    root("mmengine-device", r"No supported device found for distributed training", "config", "MMEngine knows no device of this node", "launch the script by orch without --bare, which prepares MMEngine's start on Enflame cards", sample="RuntimeError: No supported device found for distributed training.", near="supported device found", source="MMEngine, fork"),
    root("gcu-rank-exception", r"Exception in device=(?P<device>\S+?):\s*(?P<error>.*)", "code", "the rank on {device} failed: {error}", "look at the traceback of that device", literal="Exception in device=", sample="Exception in device=xla:3: boom", near="device=xla:3 started", source=_T20, follows=("ddp-model-on-cpu", "gcu-device", "gcu-oom")),
)  # fmt: skip
