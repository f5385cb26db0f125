"""The doubles of torch_gcu raise the real one's errors: each wrong use, by generation."""

from __future__ import annotations

import pytest

from tests.grounds import components
from tests.grounds.gcu import GENERATIONS, try_each

# (generation, statement, a part of the error: the type, and the beginning or a part of the text)
WRONG = [
    # backends and groups
    ("t20", "gcu.set_device(0); join('gloo')", "RuntimeError: only support eccl"),
    ("t20", "gcu.set_device(0); join('nccl')", "RuntimeError: only support eccl"),
    ("t20", "torch.distributed.init_process_group('eccl', **ALONE)", "Unknown backend type eccl"),
    ("t20", "join()", "ContractError: init_process_group before set_device"),
    ("t20", "gcu.set_device(9); join()", "ContractError: init_process_group before set_device"),
    ("t20", "gcu.set_device(0); join(timeout=30)", "RuntimeError: Expected timeout argument"),
    ("t20", "gcu.set_device(0); join(); join()", "RuntimeError: trying to initialize the default process group twice!"),
    (
        "t20",
        "gcu.set_device(0); join(init_method='env://', rank=-1)",
        "environment variable RANK expected, but not set",
    ),
    (
        "t20",
        "os.environ['GCU_DOUBLE_NO_ECCL'] = '1'; gcu.set_device(0); join()",
        "RuntimeError: Distributed package doesn't have ECCL built in",
    ),
    ("t20", "dist.get_rank()", "RuntimeError: Default process group has not been initialized"),
    (
        "t20",
        "gcu.set_device(0); join(); torch.distributed.get_rank()",
        "Default process group has not been initialized",
    ),
    ("t20", "gcu.set_device(0); join(); dist.all_reduce(torch.ones(2))", "RuntimeError: Tensors must be GCU and dense"),
    (
        "t20",
        "gcu.set_device(0); join(); torch.utils.data.DistributedSampler(range(4))",
        "Default process group has not been initialized",
    ),
    ("s60", "gcu.set_device(0); join('nccl')", "NCCL built in"),
    (
        "s60",
        "os.environ['GCU_DOUBLE_CARDS'] = '0'; join()",
        "RuntimeError: ProcessGroupECCL is only supported with GCUs",
    ),
    (
        "s60",
        "gcu.set_device(0); join(); dist.all_reduce(torch.ones(2))",
        "RuntimeError: No backend type associated with device type cpu",
    ),
    ("none", "join()", "Unknown backend type eccl"),
    # devices
    ("t20", "torch.ones(2).to('gcu:0')", "RuntimeError: Expected one of cpu, cuda"),
    ("t20", "torch.zeros(2, device='gcu:0')", "RuntimeError: Expected one of cpu, cuda"),
    ("t20", "torch.ones(2).to('xla:8')", "RuntimeError: Invalid device id, must in [0, 7], got 8"),
    ("t20", "gcu.gcu_device('cuda:0')", "ValueError: Expected a gcu device, but got: cuda:0"),
    ("t20", "gcu.set_device('cpu')", "ValueError: Expected a gcu device, but got: cpu"),
    ("t20", "gcu.get_device_name(8)", "IndexError: Invalid device id, must in [0, 7], got 8"),
    ("t20", "torch.gcu.set_device(0)", "AttributeError: module 'torch' has no attribute 'gcu'"),
    ("t20", "gcu.__version__", "AttributeError: module 'torch_gcu' has no attribute '__version__'"),
    ("t20", "torch.ones(2).to(gcu.device(0))", "TypeError"),
    ("t20", "gcu.manual_seed_all(2**40)", "ValueError: Seed must be a unint32 number"),
    ("s60", "torch.ones(2).to('xla:0')", "NotImplementedError: Could not run"),
    ("s60", "torch.ones(2).to('gcu:8')", "RuntimeError: Invalid device id, must in [0, 7], got 8"),
    ("s60", "gcu.set_device('cuda:0')", "ValueError: Expected a gcu device, but got: cuda:0"),
    ("s60", "gcu.set_device(8)", "RuntimeError: GCU error: invalid device ordinal 8"),
    ("none", "torch.ones(2).to('gcu:0')", "RuntimeError: Expected one of cpu, cuda"),
    # DistributedDataParallel
    (
        "t20",
        "gcu.set_device(0); join(); DDP(model(CARD), device_ids=[0], gradient_as_bucket_view=True)",
        "RuntimeError: dtu not support `gradient_as_bucket_view` set to True",
    ),
    (
        "t20",
        "gcu.set_device(0); join(); DDP(model('cpu'), device_ids=[0])",
        "AssertionError: DistributedDataParallel device_ids and output_device arguments only work with single-device GPU",
    ),
    (
        "t20",
        "gcu.set_device(0); join(); DDP(model(CARD))",
        "ContractError: device_ids=None takes all cards of the node",
    ),
    (
        "t20",
        "gcu.set_device(0); join(); DDP(model(CARD), device_ids=[0, 1])",
        "RuntimeError: device_ids can only be None or contain a single element.",
    ),
    (
        "t20",
        "gcu.set_device(0); join(); DDP(model('xla:1'), device_ids=[0])(ONES)",
        "RuntimeError: Expected all tensors to be on the same device",
    ),
    ("t20", "gcu.set_device(0); join(); DDP(model('cpu'))", "RuntimeError: Tensors must be GCU and dense"),
    (
        "s60",
        "gcu.set_device(0); join(); DDP(model('cpu'))",
        "RuntimeError: No backend type associated with device type",
    ),
    ("t20", "DDP(model(CARD), device_ids=[0])", "RuntimeError: Default process group has not been initialized"),
    ("t20", "StockDDP(model(CARD), device_ids=[0])", "Default process group has not been initialized"),
    (
        "t20",
        "gcu.set_device(0); join(); DDP(model(CARD), device_ids=[0]).register_comm_hook(None, None)",
        "RuntimeError: dtu not support dist._register_comm_hook",
    ),
    (
        "s60",
        "gcu.set_device(0); join(); DDP(model('cpu'), device_ids=[0])",
        "ValueError: DistributedDataParallel device_ids and output_device arguments only work with single-device",
    ),
    ("s60", "DDP(model(CARD), device_ids=[0])", "Default process group has not been initialized"),
    # precision, steps
    ("t20", "gcu.amp.autocast(dtype=torch.float32)", "RuntimeError: Current GCU Device does not support torch.float32"),
    (
        "t20",
        "gcu.amp.GradScaler().step(torch.optim.SGD(with_gradients(CARD).parameters(), lr=1))",
        "TypeError: unlazy() got an unexpected keyword argument 'device'",
    ),
    ("t20", "gcu.amp.GradScaler().scale(torch.ones(1))", "AssertionError"),
    ("t20", "gcu.optimizer_step('no optimizer')", "TypeError: Param must be"),
    ("t20", "gcu.unlazy([torch.ones(2)])", "TypeError: Tensors must be a list of GCU tensor."),
    ("s60", "gcu.amp.GradScaler().scale(torch.ones(1))", "ValueError: Device type of outputs should be gcu."),
    # tensors
    *(
        (generation, statement, message)
        for generation in GENERATIONS
        for statement, message in (
            ("model(CARD)(torch.ones(1, 2))", "RuntimeError: Expected all tensors to be on the same device"),
            ("torch.ones(2).to(CARD) + torch.ones(2)", "RuntimeError: Expected all tensors to be on the same device"),
            (
                "torch.ones(2).to(CARD) + torch.ones(2).to(CARD[:-1] + '1')",
                "RuntimeError: Expected all tensors to be on the same device",
            ),
            ("torch.ones(2).to(CARD).numpy()", "TypeError: can't convert"),
            ("torch.ones(2).to(CARD).pin_memory()", "only dense CPU tensors can be pinned"),
            ("torch.ones(2).to(CARD).cuda()", "Torch not compiled with CUDA enabled"),
        )
    ),
]
TWICE = "drawn = lambda: (torch.manual_seed(3), torch.rand(9, device=CARD).tolist())[1]"
OF_CPU = "of_cpu = lambda between: [torch.manual_seed(1), between(), torch.rand(3).tolist()][-1]"
DROPS = "drops = lambda: torch.nn.functional.dropout(torch.ones(64, device=CARD)).tolist()"
TRAINER = """
import json
from trainer.runtime.accelerators import choose
from trainer.checkpoint.format.random_state import random_state, restore_random_state
from trainer.runtime.seeds import preserve_device_rng, seed_everything, seeded_rng
accelerator = choose('gcu', torch)
accelerator.set_device(1)
place = accelerator.device_string(1)
draw = lambda: torch.rand(9, device=place).tolist() + torch.rand(9).tolist()
"""
SEEDED = """
seed_everything(2**62 + 5, accelerator); one = draw()
seed_everything(2**62 + 5, accelerator); assert one == draw()
seed_everything(2**62 + 6, accelerator); assert one[:9] != draw()[:9]
"""
RESUMED = """
seed_everything(5, accelerator); draw()
state = json.loads(random_state(accelerator)); one = draw()
seed_everything(6, accelerator); draw()
restore_random_state(state, accelerator); assert one == draw()
seed_everything(5, accelerator); first = draw(); random_state(accelerator); second = draw(); random_state(accelerator)
assert not {*first[:9]} & {*second[:9]} and second[:9] != draw()[:9]
"""
PASSED = """
seed_everything(5, accelerator); one = draw()
seed_everything(5, accelerator)
with preserve_device_rng(accelerator), seeded_rng(3): draw()
assert one == draw()
"""
RIGHT = [
    # right use passes, so that the errors above are due to the wrong use alone
    *(
        (generation, statement)
        for generation in GENERATIONS
        for statement in (
            "gcu.set_device(0); join(); DDP(model(CARD), device_ids=[0])(ONES).sum().backward()",
            "assert str(model(CARD).weight.device) == CARD",
            "assert str((torch.ones(2, device=CARD) * 2).device) == CARD",
            "assert type(torch.ones(2, device=CARD).cpu()) is torch.Tensor",
            "assert (torch.ones(2, device=CARD) + torch.tensor(1.0)).tolist() == [2, 2]",
            "assert str(with_gradients(CARD).weight.grad.device) == CARD",
            "net = model(CARD); net.load_state_dict(model('cpu').state_dict()); assert str(net.weight.device) == CARD",
            "os.environ['TOPS_VISIBLE_DEVICES'] = '2,3'; assert gcu.device_count() == 2",
            # each card draws from its own generator, which draws on the CPU do not advance
            f"{OF_CPU}; assert of_cpu(lambda: 0) == of_cpu(lambda: torch.rand(3, device=CARD))",
            f"{DROPS}; gcu.manual_seed_all(1); one = drops(); gcu.manual_seed_all(1); assert one == drops()",
        )
    ),
    ("t20", "assert torch.tensor([2**40 + 3]).to(CARD).tolist() == [3]"),  # the upper half is lost without an error
    ("s60", "assert torch.tensor([2**40 + 3]).to(CARD).tolist() == [2**40 + 3]"),
    ("t20", "assert not hasattr(torch, 'gcu')"),
    # torch.manual_seed seeds the cards of an S60 alone, whose generators can also be read and set
    ("t20", f"{TWICE}; assert drawn() != drawn()"),
    ("s60", f"{TWICE}; assert drawn() == drawn()"),
    ("t20", "assert not [name for name in dir(gcu) if 'rng_state' in name]"),
    (
        "s60",
        f"{DROPS}; state = gcu.get_rng_state(); one = drops(); gcu.set_rng_state(state); assert one == drops() != drops()",
    ),
    # the trainer on them
    *((generation, f"{TRAINER}{statement}") for generation in GENERATIONS for statement in (SEEDED, RESUMED, PASSED)),
    (
        "t20",
        "gcu.set_device(0); join(); from torch_gcu.utils.data.distributed import DistributedSampler as S; S(range(4))",
    ),
    (
        "s60",
        "with torch.autocast('gcu', dtype=torch.bfloat16): assert model(CARD)(ONES).dtype is torch.bfloat16",
    ),
    (
        "t20",
        "with gcu.amp.autocast(dtype=torch.bfloat16): assert model(CARD)(ONES).dtype is torch.bfloat16",
    ),
]

pytestmark = pytest.mark.xdist_group("doubles")  # all statements run at once, for the first test

Raised = dict[tuple[str, str], str]


@pytest.fixture(scope="module")
def raised() -> Raised:
    """Statement -> its error; torch is imported once for all of them."""
    components.module("torch")
    statements = [*((generation, statement) for generation, statement, _ in WRONG), *RIGHT]
    return dict(zip(statements, try_each(statements), strict=True))


@pytest.mark.parametrize(("generation", "statement", "message"), WRONG)
def test_wrong_use_raises_the_real_error(raised: Raised, generation: str, statement: str, message: str) -> None:
    assert message in raised[generation, statement]


@pytest.mark.parametrize(("generation", "statement"), RIGHT)
def test_right_use_passes(raised: Raised, generation: str, statement: str) -> None:
    assert raised[generation, statement] == "nothing was raised"
