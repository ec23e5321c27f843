"""A step that is captured, compiled, or run as it is."""

import pytest
import torch

from lightning_gaudi.inference import Runner, resolve
from tests.helpers.forked import fork_python


def test_an_engine_is_what_the_mode_has():
    assert resolve("auto", "cpu") == resolve("none", "cpu") == "none"
    assert resolve("auto", "hpu") == resolve("compile", torch.device("hpu", 0)) == "compile"
    assert resolve("none", "hpu") == "none"


@pytest.mark.parametrize(
    ("engine", "device", "message"),
    [
        ("graphs", "hpu", "engine='graphs' is none of 'auto', 'graph', 'compile', 'none'"),
        ("graph", "cpu", "engine='graph' is for the HPU, and this runs on 'cpu'"),
        ("compile", "cpu", "engine='compile' is for the HPU, and this runs on 'cpu'"),
        ("graph", "hpu", "this process is in eager mode. Set PT_HPU_LAZY_MODE=1 before it starts"),
    ],
)
def test_an_engine_that_there_is_not_is_refused(engine, device, message):
    with pytest.raises(ValueError, match=message):
        Runner(lambda: None, engine, device=device)


def test_weights_in_shards_of_zero3_are_run_as_they_are():
    model = torch.nn.Linear(2, 2)
    model.weight.ds_tensor = torch.zeros(2)  # as DeepSpeed marks them
    assert resolve("auto", "hpu", model) == resolve("none", "hpu", model) == "none"
    assert resolve("auto", "hpu", torch.nn.Linear(2, 2)) == "compile"
    with pytest.raises(ValueError, match="engine='compile' wants the weights where they are"):
        resolve("compile", "hpu", model)


@pytest.mark.parametrize(("engine", "device"), [("none", "cpu"), ("none", "hpu")])
def test_a_step_runs_without_gradients_and_updates_in_place(engine, device):
    total = torch.zeros(2, device=device)
    runner = Runner(lambda x: total.add_(x * weight), engine, device=device)
    weight = torch.ones(2, device=device, requires_grad=True)
    with torch.inference_mode():
        for _ in range(3):
            result = runner(torch.ones(2, device=device))
    assert total.tolist() == [3.0, 3.0]
    assert not result.requires_grad
    assert not result.is_inference()


@pytest.mark.slow
def test_more_steps_are_compiled_than_torch_has_of_one_function():
    from torch._dynamo import config

    before = config.recompile_limit
    for width in range(1, 11):
        total = torch.zeros(width, device="hpu")
        runner = Runner(lambda x, total=total: total.add_(x).sum(), "compile")
        runner(torch.ones(width, device="hpu"))
        assert runner(torch.ones(width, device="hpu")).item() == 2.0 * width
        assert total.tolist() == [2.0] * width
    assert config.recompile_limit == before


def test_a_step_that_breaks_the_compiled_graph_raises():
    from torch._dynamo.exc import TorchDynamoException

    runner = Runner(lambda x: x.sum() if x.sum().item() > 0 else x, "compile")
    with pytest.raises(TorchDynamoException):
        runner(torch.ones(2, device="hpu"))


LAZY = {"PT_HPU_LAZY_MODE": "1"}


def test_a_captured_step_is_replayed_on_copies_of_its_arguments():
    source = """
        import torch
        from lightning_gaudi.inference import Runner

        total, num_runs = torch.zeros(2, device="hpu"), 0

        def step(x, y):
            global num_runs
            num_runs += 1
            return total.add_(x), x * y

        runner = Runner(step)
        assert (runner.engine, runner.num_captures) == ("graph", 0)
        given = [(torch.full((2,), i, device="hpu"), torch.ones(2, device="hpu")) for i in (1., 2.)]
        first = runner(*given[0])
        assert [t.tolist() for t in first] == [[1, 1], [1, 1]]
        second = runner(*given[1])
        assert [t.tolist() for t in second] == [[3, 3], [2, 2]]
        assert first[1] is second[1] and total.tolist() == [3, 3]
        assert given[0][0].tolist() == [1, 1]
        assert (num_runs, runner.num_captures) == (1, 1)
        for wrong in (torch.ones(3, device="hpu"), torch.ones(2, dtype=torch.bfloat16).to("hpu")):
            try:
                runner(wrong, given[0][1])
            except ValueError as error:
                assert "The HPU graph was captured for [((2,), torch.float32)" in str(error)
            else:
                raise AssertionError("not refused")
    """
    fork_python(source, env=LAZY)


def test_a_step_that_cannot_be_captured_leaves_nothing_behind():
    source = """
        import torch
        from lightning_gaudi.inference import Runner

        is_read = True

        def step(x):
            return x + x.sum().item() if is_read else x + 1

        runner = Runner(step, "graph")
        try:
            runner(torch.ones(2, device="hpu"))
        except RuntimeError as error:
            assert "is not supported during HPU graph capturing" in str(error), error
        else:
            raise AssertionError("not refused")
        is_read = False
        assert runner(torch.ones(2, device="hpu")).tolist() == [2, 2]
        try:
            Runner(step, "compile")
        except ValueError as error:
            assert "in lazy mode the vendor's bridge compiles by itself" in str(error)
        else:
            raise AssertionError("not refused")
    """
    fork_python(source, env=LAZY)


def test_without_an_engine_a_lazy_step_is_a_graph_of_its_own():
    source = """
        import torch
        from lightning_gaudi import simulator
        from lightning_gaudi.inference import Runner

        x = torch.ones(2, device="hpu")
        runner = Runner(lambda: x.add_(1).exp_(), "none")
        runner()
        before = simulator.launches()
        runner()
        assert simulator.launches() - before == 1
    """
    fork_python(source, env=LAZY)
