"""What plain Python does to a model while it trains, compiled and as written: the same results.

Each program changes a model between two steps, or asks something of it, and returns what it has
noted, as numbers, if anything. Losses of all steps and these numbers are compared.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from lightning_gaudi.strategies import SingleHPUStrategy
from tests.helpers.tiny import batches, hpu_trainer

pytestmark = pytest.mark.filterwarnings("default")

_SCALE = 1.0
"""A global that `Block.forward` reads."""


class Block(nn.Module):
    """Two layers around an activation, and what a program may set."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)
        self.norm: nn.Module | None = None
        self.scale = 1.0
        self.steps: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.down(self.act(self.up(x))) * self.scale * _SCALE
        if self.norm is not None:
            hidden = self.norm(hidden)
        for step in self.steps:
            hidden = getattr(torch, step)(hidden)
        return self.finish(x + hidden)

    def finish(self, x: Tensor) -> Tensor:
        return x


class Doubled(Block):
    """What a block becomes by its class."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class DoubledLinear(nn.Linear):
    """What a layer becomes by its class."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Model(pl.LightningModule):
    """Three blocks and a head; runs `program` before the third batch of each epoch of two."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        self.example_input_array = torch.ones(2, 8)
        self.program = program
        self.losses: list[Tensor] = []
        self.noted: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2 and self.current_epoch == 0:
            self.program(self)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self(batch[0]).square().mean()
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-2)

    def note(self, *values: Any) -> None:
        """Keep what is compared: a tensor, or a number."""
        self.noted += [torch.as_tensor(value).detach().float().cpu().sum() for value in values]


Program = Callable[[Model], None]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    """List a program."""
    PROGRAMS[function.__name__.strip("_")] = function
    return function


@program
def _forward_hook_on_an_inner_layer(model: Model) -> None:
    model.blocks[1].up.register_forward_hook(lambda _, __, result: model.note(result))


@program
def _forward_hook_changes_what_a_layer_returns(model: Model) -> None:
    model.blocks[0].act.register_forward_hook(lambda _, __, result: 3 * result)


@program
def _pre_hook_changes_what_a_layer_is_given(model: Model) -> None:
    model.blocks[2].down.register_forward_pre_hook(lambda _, args: (args[0] * 2,))


@program
def _pre_hook_with_keywords(model: Model) -> None:
    def double(_: nn.Module, args: Any, kwargs: Any) -> Any:
        return (args[0] * 2,), kwargs

    model.blocks[2].down.register_forward_pre_hook(double, with_kwargs=True)


@program
def _hooks_that_come_first_and_always(model: Model) -> None:
    layer = model.blocks[1].down
    layer.register_forward_hook(lambda _, __, result: result + 1)
    layer.register_forward_hook(lambda _, __, result: result * 2, prepend=True, always_call=True)


@program
def _backward_hook_notes(model: Model) -> None:
    model.blocks[1].up.register_full_backward_hook(lambda _, given, got: model.note(got[0]))


@program
def _backward_hook_changes_a_gradient(model: Model) -> None:
    model.blocks[1].up.register_full_backward_hook(lambda _, given, got: (2 * given[0],))


@program
def _backward_pre_hook(model: Model) -> None:
    model.blocks[1].up.register_full_backward_pre_hook(lambda _, got: (2 * got[0],))


@program
def _hook_on_a_block(model: Model) -> None:
    model.blocks[1].register_forward_hook(lambda _, __, result: result * 2)


@program
def _hook_on_a_block_in_backward(model: Model) -> None:
    model.blocks[1].register_full_backward_hook(lambda _, given, got: (2 * given[0],))


@program
def _hook_on_a_weight(model: Model) -> None:
    model.blocks[1].up.weight.register_hook(lambda gradient: 2 * gradient)


@program
def _hook_after_a_gradient_is_added(model: Model) -> None:
    weight = model.blocks[1].up.weight
    weight.register_post_accumulate_grad_hook(lambda each: model.note(each.grad))


@program
def _hook_that_is_taken_away(model: Model) -> None:
    handle = model.blocks[1].up.register_forward_hook(lambda _, __, result: 2 * result)
    model.note(model(torch.ones(2, 8, device=model.device)))
    handle.remove()


@program
def _hook_on_all_modules(model: Model) -> None:
    def double(module: nn.Module, _: Any, result: Any) -> Any:
        return 2 * result if isinstance(module, nn.GELU) else None

    # Taken away once the fit has ended.
    model.on_train_end = nn.modules.module.register_module_forward_hook(double).remove


@program
def _hook_that_breaks_off(model: Model) -> None:
    class StopError(Exception):
        pass

    def stop(*_: Any) -> None:
        raise StopError

    handle = model.blocks[1].act.register_forward_hook(stop)
    with pytest.raises(StopError):
        model(torch.ones(2, 8, device=model.device))
    handle.remove()


@program
def _gradient_of_a_layer_as_grad_cam_takes_it(model: Model) -> None:
    kept: list[Tensor] = []

    def keep(_: nn.Module, __: Any, result: Tensor) -> None:
        result.retain_grad()
        kept.append(result)

    handle = model.blocks[1].act.register_forward_hook(keep)
    model(torch.ones(2, 8, device=model.device)).sum().backward()
    handle.remove()
    model.zero_grad()
    model.note(kept[0].grad, kept[0])


@program
def _class_of_a_layer(model: Model) -> None:
    model.blocks[1].up.__class__ = DoubledLinear


@program
def _class_of_a_block(model: Model) -> None:
    model.blocks[1].__class__ = Doubled


@program
def _class_of_a_part_that_is_a_region(model: Model) -> None:
    model.head.__class__ = type(
        "Tripled", (nn.Sequential,), {"forward": lambda self, x: 3 * nn.Sequential.forward(self, x)}
    )


@program
def _forward_of_a_layer(model: Model) -> None:
    layer = model.blocks[1].up
    original = layer.forward
    layer.forward = lambda x: 2 * original(x)


@program
def _forward_of_a_block(model: Model) -> None:
    block = model.blocks[1]
    original = block.forward
    block.forward = lambda x: 2 * original(x)


@program
def _forward_of_a_class_of_blocks(model: Model) -> None:
    original = Block.forward
    Block.forward = lambda self, x: 2 * original(self, x)

    def restore() -> None:
        Block.forward = original

    model.on_train_end = restore


@program
def _forward_of_a_class_of_layers(model: Model) -> None:
    original = nn.GELU.forward
    nn.GELU.forward = lambda self, x: 2 * original(self, x)

    def restore() -> None:
        nn.GELU.forward = original

    model.on_train_end = restore


@program
def _method_of_a_class_of_blocks(model: Model) -> None:
    original = Block.finish
    Block.finish = lambda self, x: 2 * original(self, x)

    def restore() -> None:
        Block.finish = original

    model.on_train_end = restore


@program
def _function_of_torch(model: Model) -> None:
    original = nn.functional.gelu

    def double(x: Tensor, **settings: Any) -> Tensor:
        return 2 * original(x, **settings)

    nn.functional.gelu = double

    def restore() -> None:
        nn.functional.gelu = original

    model.on_train_end = restore


@program
def _layer_replaced(model: Model) -> None:
    model.blocks[1].up = nn.Linear(8, 16, bias=False).to(model.device)
    model.blocks[1].act = nn.Identity()


@program
def _layer_where_there_was_none(model: Model) -> None:
    model.blocks[1].norm = nn.LayerNorm(8).to(model.device)


@program
def _layer_taken_away_and_added(model: Model) -> None:
    del model.head[1]
    model.head.append(nn.Tanh())


@program
def _block_replaced(model: Model) -> None:
    model.blocks[1] = Doubled().to(model.device)
    model.blocks.append(Block().to(model.device))


@program
def _attribute_of_a_block(model: Model) -> None:
    model.blocks[1].scale = 0.5


@program
def _list_of_a_block(model: Model) -> None:
    model.blocks[1].steps.append("tanh")


@program
def _global_of_a_module(model: Model) -> None:
    global _SCALE
    _SCALE = 0.5

    def restore() -> None:
        global _SCALE
        _SCALE = 1.0

    model.on_train_end = restore


@program
def _frozen_weights(model: Model) -> None:
    model.blocks[1].requires_grad_(False)
    model.head[0].weight.requires_grad_(False)


@program
def _thawed_weights(model: Model) -> None:
    model.blocks.requires_grad_(True)


@program
def _mode_of_a_layer(model: Model) -> None:
    model.blocks[1].act = nn.Dropout(1.0)
    model.blocks[1].act.eval()


@program
def _weight_replaced(model: Model) -> None:
    model.blocks[1].up.weight = nn.Parameter(torch.ones(16, 8, device=model.device))


@program
def _weight_written_to(model: Model) -> None:
    model.blocks[1].up.weight.data = torch.ones(16, 8, device=model.device)
    with torch.no_grad():
        model.blocks[2].up.weight.fill_(0.1)


@program
def _weights_tied(model: Model) -> None:
    model.blocks[1].up.weight = model.blocks[2].up.weight


@program
def _pruned(model: Model) -> None:
    prune.l1_unstructured(model.blocks[1].up, "weight", amount=0.5)


@program
def _pruned_for_good(model: Model) -> None:
    prune.l1_unstructured(model.blocks[1].up, "weight", amount=0.5)
    prune.remove(model.blocks[1].up, "weight")


@program
def _parametrized(model: Model) -> None:
    parametrizations.weight_norm(model.blocks[1].up)


@program
def _buffer_added(model: Model) -> None:
    class Shifted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.shift

    layer = model.blocks[1].up
    layer.register_buffer("shift", torch.ones(16, device=model.device))
    layer.__class__ = Shifted


@program
def _traced(model: Model) -> None:
    x = torch.randn(2, 8).to(model.device)
    traced = torch.jit.trace(model.blocks[0], x)
    model.note(traced(x))
    model.note(model.to_torchscript(method="trace")(x))


@program
def _scripted(model: Model) -> None:
    x = torch.randn(2, 8).to(model.device)
    model.note(torch.jit.script(model.head)(x))


@program
def _traced_symbolically(model: Model) -> None:
    x = torch.randn(2, 8).to(model.device)
    for module in (model.blocks[0], nn.Sequential(*model.blocks, model.head)):
        graph = torch.fx.symbolic_trace(module)
        model.note(graph(x), len(graph.graph.nodes))


@program
def _exported(model: Model) -> None:
    x = torch.randn(2, 8).to(model.device)
    for strict in (False, True):
        exported = torch.export.export(model.blocks[0], (x,), strict=strict)
        model.note(exported.module()(x), len(exported.graph.nodes))


@program
def _traced_with_proxies(model: Model) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.randn(2, 8).to(model.device)
    graph = make_fx(model.blocks[0])(x)
    model.note(graph(x), len(graph.graph.nodes))


@program
def _transformed_by_func(model: Model) -> None:
    block = model.blocks[0]
    weights = {name: each.detach() for name, each in block.named_parameters()}
    x = torch.randn(3, 8).to(model.device)

    def loss(weights: Any, x: Tensor) -> Tensor:
        return torch.func.functional_call(block, weights, (x,)).square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)
    model.note(*gradients.values())
    model.note(torch.func.jvp(lambda x: loss(weights, x), (x,), (x,))[1])


@program
def _in_forward_mode(model: Model) -> None:
    from torch.autograd import forward_ad

    x = torch.randn(3, 8).to(model.device)
    with forward_ad.dual_level():
        model.note(forward_ad.unpack_dual(model(forward_ad.make_dual(x, x))).tangent)


@program
def _counted_operators(model: Model) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model(torch.randn(2, 8).to(model.device)).sum().backward()
    model.zero_grad()
    model.note(counter.get_total_flops())


@program
def _under_a_mode_of_functions(model: Model) -> None:
    from torch.overrides import TorchFunctionMode

    class Doubles(TorchFunctionMode):
        def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None):
            result = function(*args, **kwargs or {})
            return 2 * result if function is torch.nn.functional.gelu else result

    with Doubles():
        model.note(model(torch.ones(2, 8, device=model.device)))


@program
def _saved_tensors_on_the_cpu(model: Model) -> None:
    num_saved = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal num_saved
        num_saved += 1
        return tensor.cpu()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each.to(model.device)):
        loss = model(torch.ones(2, 8, device=model.device)).sum()
    loss.backward()
    model.note(model.blocks[0].up.weight.grad, num_saved > 0)
    model.zero_grad()


@program
def _gradients_by_hand(model: Model) -> None:
    x = torch.ones(2, 8, device=model.device, requires_grad=True)
    for result in (model(x).sum(), model.blocks[1](x).sum()):
        model.note(*torch.autograd.grad(result, x))


@program
def _without_gradients(model: Model) -> None:
    x = torch.ones(2, 8, device=model.device)
    with torch.no_grad():
        model.note(model(x))
    with torch.inference_mode():
        model.note(model(x))
    model.eval()
    model.note(model(x))
    model.train()


@program
def _in_autocast(model: Model) -> None:
    x = torch.ones(2, 8, device=model.device)
    with torch.autocast("hpu", dtype=torch.bfloat16):
        result = model(x)
    model.note(result, result.dtype == torch.bfloat16)


@program
def _copied(model: Model) -> None:
    average = torch.optim.swa_utils.AveragedModel(model.blocks)
    average.update_parameters(model.blocks)
    other = copy.deepcopy(model.head)
    other.register_forward_hook(lambda _, __, result: 2 * result)
    model.note(other(torch.ones(2, 8, device=model.device)), *average.parameters())


@program
def _summarized(model: Model) -> None:
    from lightning.pytorch.utilities.model_summary import ModelSummary

    summary = ModelSummary(model, max_depth=-1)
    model.note(*[size[-1] for size in summary.out_sizes if isinstance(size, list)])


def _fit(how: str, chosen: Program) -> Model:
    model = Model(chosen)
    if chosen is _thawed_weights:
        model.blocks.requires_grad_(False)
    trainer = hpu_trainer(strategy=SingleHPUStrategy(compile=how), max_epochs=2)
    trainer.fit(model, batches(4))
    return model


@pytest.mark.slow_but("in_forward_mode-regions")
@pytest.mark.parametrize("how", ["regions", pytest.param("model", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_finds_the_model_as_written(name: str, how: str) -> None:
    expected = _fit("none", PROGRAMS[name])
    found = _fit(how, PROGRAMS[name])
    close: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(found.losses, expected.losses, **close)
    torch.testing.assert_close(found.noted, expected.noted, **close)
    assert len(expected.losses) == 8
