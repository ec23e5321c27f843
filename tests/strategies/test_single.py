from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from lightning_gaudi import HPUCheckpointIO, SingleHPUStrategy
from lightning_gaudi._core import vendor
from tests.helpers.forked import fork_python
from tests.helpers.tiny import TinyModule, ValidatedModule, batches, hpu_trainer


class _SeededSteps(TinyModule):
    """Seeds each step, since on the CPU the data loader draws from the same generator."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        torch.manual_seed(batch_idx)
        return super().training_step(batch, batch_idx)


def test_training_on_hpu_equals_the_cpu_bit_for_bit() -> None:
    runs = {}
    for accelerator in ("cpu", "hpu"):
        torch.manual_seed(7)
        model = _SeededSteps()
        hpu_trainer(accelerator=accelerator, max_steps=20).fit(model, batches(20))
        runs[accelerator] = [torch.stack(model.losses).cpu(), *model.state_dict().values()]
    for cpu, hpu in zip(runs["cpu"], runs["hpu"], strict=True):
        assert torch.equal(cpu, hpu)


def test_model_is_back_on_the_cpu_after_training() -> None:
    model = TinyModule()
    hpu_trainer(max_steps=2).fit(model, batches(2))
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


def test_evaluation_and_prediction_run_on_hpu() -> None:
    class Predicting(ValidatedModule):
        def predict_step(self, batch: Any, batch_idx: int) -> str:
            return str(super().predict_step(batch, batch_idx).device)

    trainer, model = hpu_trainer(), Predicting()
    (metrics,) = trainer.validate(model, batches(2), verbose=False)
    assert metrics["val_loss"] > 0
    (metrics,) = trainer.test(model, batches(2), verbose=False)
    assert metrics["test_loss"] > 0
    assert trainer.predict(model, batches(2)) == ["hpu:0", "hpu:0"]


def test_training_step_never_waits_for_the_device() -> None:
    class Counting(TinyModule):
        def __init__(self) -> None:
            super().__init__()
            self.syncs: list[int] = []

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            metric = vendor.metric("host_sync")
            assert metric is not None
            self.syncs.append(metric["TotalNumber"])
            loss = super().training_step(batch, batch_idx)
            self.log("loss", loss)
            return loss

    model = Counting()
    hpu_trainer(max_steps=10, gradient_clip_val=1.0).fit(model, batches(10))
    steps = [after - before for before, after in zip(model.syncs, model.syncs[1:], strict=False)]
    assert steps == [0] * 9


def test_batches_are_moved_without_waiting() -> None:
    moves: list[bool] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if func is Tensor.to and torch.device("hpu", 0) in args[1:]:
                moves.append(kwargs.get("non_blocking", False))
            return func(*args, **kwargs)

    strategy = SingleHPUStrategy()
    with Watch():
        moved = strategy.batch_to_device({"x": torch.ones(2), "y": [torch.ones(2)]})
    assert moved["y"][0].device == torch.device("hpu", 0)
    assert moves == [True, True]


class _Tied(TinyModule):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 8)
        self.head = nn.Linear(8, 8, bias=False)
        self.head.weight = self.embedding.weight


def test_tied_weights_are_tied_on_the_device_and_back() -> None:
    strategy, model = SingleHPUStrategy(), _Tied()
    strategy.connect(model)
    strategy.model_to_device()
    assert model.head.weight is model.embedding.weight
    assert model.head.weight.device == torch.device("hpu", 0)
    hpu_trainer(max_steps=2).fit(model, batches(2))
    assert model.head.weight is model.embedding.weight
    assert model.head.weight.device.type == "cpu"


def test_lazy_mode_cuts_after_backward_and_after_the_optimizer() -> None:
    result = fork_python(
        """
        from lightning_gaudi import vendor
        from tests.helpers.tiny import ValidatedModule, batches, hpu_trainer
        marks = []
        mark_step = vendor.mark_step
        def marking():
            marks.append(where[0])
            mark_step()
        vendor.mark_step = marking
        where = ["?"]
        class Model(ValidatedModule):
            def on_before_backward(self, loss): where[0] = "backward"
            def on_before_zero_grad(self, optimizer): where[0] = "zero_grad"
            def on_before_optimizer_step(self, optimizer): where[0] = "optimizer"
            def on_validation_batch_start(self, *args): where[0] = "validation"
        model = Model()
        trainer = hpu_trainer(max_steps=4, accumulate_grad_batches=2, num_sanity_val_steps=0)
        trainer.fit(model, batches(8), batches(2))
        steps = (["backward"] * 2 + ["optimizer"]) * 4
        print(marks == ["?", *steps, "validation", "validation"], marks)
        print(vendor.is_lazy(), vendor.metric("graph_compilation")["TotalNumber"])
        """,
        env={"PT_HPU_LAZY_MODE": "1"},
    )
    assert result.stdout.startswith("True"), result.stdout


@pytest.mark.slow
def test_metrics_of_a_validation_do_not_change_the_next_training_graph() -> None:
    result = fork_python(
        """
        from lightning_gaudi import vendor
        from tests.helpers.tiny import ValidatedModule, batches, hpu_trainer
        def num_compiled():
            return vendor.metric("graph_compilation")["TotalNumber"]
        steps = []
        class Model(ValidatedModule):
            def training_step(self, *args):
                steps.append(-num_compiled())
                return super().training_step(*args)
            def on_train_batch_end(self, *args):
                steps[-1] += num_compiled()
            def on_validation_epoch_end(self):
                self.log("number", 1.0)
        trainer = hpu_trainer(max_epochs=2, val_check_interval=2, num_sanity_val_steps=0)
        trainer.fit(Model(), batches(6), batches(2))
        print("compiled in each training step:", *steps)
        """,
        env={"PT_HPU_LAZY_MODE": "1"},
    )
    # A step is two graphs; the optimizer's first step and the first that finds its state differ.
    assert result.stdout.split(":")[-1].split() == ["2", "1", *["0"] * 10]


def test_eager_mode_marks_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor, "mark_step", lambda: pytest.fail("mark_step in eager mode"))
    trainer = hpu_trainer(max_steps=2)
    trainer.fit(ValidatedModule(), batches(2), batches(1))
    trainer.test(ValidatedModule(), batches(1), verbose=False)


def _fit(max_epochs: int, path: Path | None = None) -> tuple[TinyModule, Any]:
    torch.manual_seed(11)
    model = TinyModule(dropout=0.5)
    trainer = hpu_trainer(max_epochs=max_epochs)
    trainer.fit(model, batches(10), ckpt_path=path)
    return model, trainer


def test_resumed_run_draws_the_dropout_it_would_have_drawn(tmp_path: Path) -> None:
    whole, _ = _fit(2)
    _, trainer = _fit(1)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    torch.rand(100, device="hpu")
    resumed, _ = _fit(2, tmp_path / "half.ckpt")
    assert torch.equal(torch.stack(resumed.losses).cpu(), torch.stack(whole.losses[10:]).cpu())
    for name, weight in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], weight), name


def test_sanity_check_leaves_no_trace_in_the_devices_random_numbers() -> None:
    class Drawing(ValidatedModule):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            torch.rand(3, device="hpu")

    losses = []
    for num_steps in (0, 2):
        torch.manual_seed(3)
        model = Drawing(dropout=0.5)
        trainer = hpu_trainer(
            max_steps=3, num_sanity_val_steps=num_steps, limit_val_batches=num_steps
        )
        trainer.fit(model, batches(3), batches(2))
        losses.append(torch.stack(model.losses).cpu())
    assert torch.equal(*losses)


def test_what_a_users_hook_seeds_stays_seeded_after_the_sanity_check() -> None:
    class Seeding(ValidatedModule):
        def on_train_start(self) -> None:
            torch.manual_seed(7)
            self.expected = torch.rand(3, device="hpu")
            torch.manual_seed(7)

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            self.drawn = torch.rand(3, device="hpu")

    model = Seeding()
    hpu_trainer(max_steps=1, num_sanity_val_steps=1).fit(model, batches(1), batches(1))
    assert torch.equal(model.drawn, model.expected)


def test_random_state_of_another_device_is_passed_over_with_a_warning(tmp_path: Path) -> None:
    _, trainer = _fit(1)
    trainer.save_checkpoint(tmp_path / "checkpoint.ckpt")
    checkpoint = torch.load(tmp_path / "checkpoint.ckpt", weights_only=True)
    checkpoint["hpu_rng_state"] = torch.zeros(3, dtype=torch.uint8)
    torch.save(checkpoint, tmp_path / "checkpoint.ckpt")
    with pytest.warns(UserWarning, match="random state is of another kind of HPU"):
        _fit(2, tmp_path / "checkpoint.ckpt")


def test_checkpoint_io_is_ours_by_default_and_inside_wrappers() -> None:
    assert type(SingleHPUStrategy().checkpoint_io) is HPUCheckpointIO
    wrapper = AsyncCheckpointIO()
    assert SingleHPUStrategy(checkpoint_io=wrapper).checkpoint_io is wrapper
    assert type(wrapper.checkpoint_io) is HPUCheckpointIO
    wrapper.teardown()


@pytest.mark.parametrize("device", ["cpu", "hpu:1", 2, torch.device("cuda")])
def test_strategy_is_for_the_hpu_of_the_process(device: Any) -> None:
    with pytest.raises(ValueError, match=r"SingleHPUStrategy\(device=.*is not the HPU"):
        SingleHPUStrategy(device=device)


def test_out_of_memory_reaches_the_user() -> None:
    result = fork_python(
        """
        import torch
        from lightning_gaudi import simulator
        from tests.helpers.tiny import TinyModule, batches, hpu_trainer
        simulator.set_memory_limit(1 << 20)
        class Big(TinyModule):
            def training_step(self, batch, batch_idx):
                torch.zeros(1 << 20, device="hpu")
                return super().training_step(batch, batch_idx)
        hpu_trainer(max_steps=1).fit(Big(), batches(1))
        """,
        check=False,
    )
    assert "FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed" in result.stderr
    assert "HPU out of memory" in result.stderr


def test_why_a_data_set_cannot_be_given_to_workers_is_the_error() -> None:
    """Lightning asks for the length of a loader that never began, while it ends."""
    data: Any = [torch.ones(8), threading.Lock()]
    loader = DataLoader(data, num_workers=1)
    trainer = hpu_trainer(max_epochs=1)
    with pytest.raises(ValueError, match="cannot start its workers: dataset"):
        trainer.fit(TinyModule(), loader)


class _SendsToCuda(TinyModule):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step([each.cuda() for each in batch], batch_idx)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Needs Python 3.11 for notes.")
def test_who_asks_for_cuda_is_told_which_device_the_run_has() -> None:
    with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA") as caught:
        hpu_trainer(max_epochs=1).fit(_SendsToCuda(), batches(2))
    (note,) = caught.value.__notes__
    assert "this run is on 'hpu'. Use the device that the run has: self.device" in note


class _Full(TinyModule):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        raise RuntimeError(
            "unable to allocate shared memory(shm) for file </torch_1_2_0>: No space left on device"
        )


def test_what_to_do_for_workers_without_shared_memory_is_said(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As in a container, where torch says what it could not allocate."""
    with pytest.raises(RuntimeError, match="unable to allocate"):
        hpu_trainer(devices=1, max_steps=1).fit(_Full(), batches(1))
    said = capfd.readouterr().err
    assert re.search(r"/dev/shm, .* has \d+ MiB\. On Kubernetes mount an emptyDir of medium", said)
