"""Every operator that torch's own database knows, on hpu: CPU's bits, FakeTensor's strides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import get_args

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)

from tests.helpers.opinfo import (
    HPU_DTYPES,
    Check,
    Layout,
    SampleInput,
    Variant,
    arguments,
    call,
    difference,
    fake,
    in_each_dtype,
    lay_out,
    move,
    on_hpu_alone,
    seed_all,
    tensors,
    variants,
)
from tests.simulator import opinfo_misses as misses

Compare = Callable[[Variant, int], None]

FORWARD = variants()
BACKWARD = [variant for variant in FORWARD if variant.has_backward]

# torch's samples go through deprecated functions and out-of-range casts on purpose.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True, scope="module")
def _cheap_seeds() -> Iterator[None]:
    """For accelerators that are not there yet, torch keeps each seed with the stack of its call."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (torch.cuda, torch.xpu, torch.mtia):
            patch.setattr(module, "manual_seed_all", lambda seed: None)
        yield


def _run(compare: Compare, variant: Variant, max_samples: int, reasons: dict[str, str]) -> None:
    """Compare; a miss is a strict xfail.

    By hand, for the mark would quote the source of torch where it raised, which takes a second.
    """
    if variant.name not in reasons:
        compare(variant, max_samples)
        return
    try:
        compare(variant, max_samples)
        has_failed = False
    except Exception:
        has_failed = True
    if has_failed:
        pytest.xfail(reasons[variant.name])
    pytest.fail(f"{variant.name} passes: delete it from the misses ({reasons[variant.name]})")


def _params(group: list[Variant]) -> list[object]:
    """One test case a variant."""
    return [pytest.param(variant, id=variant.name) for variant in group]


# Some operators have a thousand samples that differ in one flag: 48 are as good as all, and the
# first of them meet all but rare faults.
ALL_SAMPLES = 48


def _samples(num_fast: int) -> pytest.MarkDecorator:
    all_of_them = pytest.param(ALL_SAMPLES, marks=pytest.mark.slow)
    return pytest.mark.parametrize("max_samples", [num_fast, all_of_them])


@_samples(4)
@pytest.mark.parametrize("variant", _params(FORWARD))
def test_forward_equals_cpu(variant: Variant, max_samples: int) -> None:
    _run(_compare_forward, variant, max_samples, misses.FORWARD)


def _compare_forward(variant: Variant, max_samples: int) -> None:
    num_compared = 0
    for index, sample in enumerate(variant.samples("hpu", max_samples)):
        on_cpu, on_hpu = (move(arguments(sample), device) for device in ("cpu", "hpu"))
        expected, actual = call(variant, on_cpu), call(variant, on_hpu)
        found = difference(expected, actual, _check(variant))
        assert found is None, f"sample {index}: {found}\n{sample.summary()}"
        # An operator may write into its arguments.
        found = difference(*on_hpu_alone(on_cpu, on_hpu), _check(variant))
        assert found is None, f"arguments of sample {index}: {found}\n{sample.summary()}"
        num_compared += 1
    assert num_compared, f"{variant.name} has no sample"


def _check(variant: Variant) -> Check:
    """How the values of the variant's outputs are compared."""
    if variant.name in misses.UNDEFINED_CONTENTS:
        return "metadata"
    return "close" if variant.name in misses.NOT_DETERMINISTIC else "bits"


@_samples(4)
@pytest.mark.parametrize("variant", _params(BACKWARD))
def test_backward_equals_cpu(variant: Variant, max_samples: int) -> None:
    _run(_compare_backward, variant, max_samples, misses.BACKWARD)


def _compare_backward(variant: Variant, max_samples: int) -> None:
    num_compared = 0
    check: Check = "close" if variant.name in misses.LAST_BITS else "bits"
    for index, sample in enumerate(variant.samples("hpu", max_samples, requires_grad=True)):
        expected, actual = (_gradients(variant, sample, device) for device in ("cpu", "hpu"))
        found = difference(expected, actual, check)
        assert found is None, f"sample {index}: {found}\n{sample.summary()}"
        num_compared += len(tensors(expected))
    assert num_compared, f"{variant.name} has no sample with a gradient"


def _gradients(variant: Variant, sample: SampleInput, device: str) -> Sequence[torch.Tensor | None]:
    """Gradients of every output that has one with respect to every input that wants one."""
    moved = move(arguments(sample), device)
    outputs = tensors(sample.output_process_fn_grad(call(variant, moved)))
    outputs = [output for output in outputs if output.requires_grad]
    inputs = [tensor for tensor in tensors(moved) if tensor.requires_grad]
    if not outputs or not inputs:
        return []
    seed_all(2)
    # Row-major: `randn_like` would draw in the order of the output's memory, which may differ.
    upstream = [torch.randn(each.shape, dtype=each.dtype).to(device) for each in outputs]
    seed_all(3)
    return torch.autograd.grad(outputs, inputs, upstream, allow_unused=True)


@_samples(2)
@pytest.mark.parametrize("variant", _params(FORWARD))
def test_output_strides_equal_those_of_fake_tensor(variant: Variant, max_samples: int) -> None:
    _run(_compare_strides, variant, max_samples, misses.STRIDES)


def _compare_strides(variant: Variant, max_samples: int) -> None:
    num_compared, mode = 0, FakeTensorMode()
    if variant.name in misses.STRIDES:
        max_samples = ALL_SAMPLES  # some of these show in a late sample alone
    for index, sample in enumerate(variant.samples("hpu", max_samples)):
        on_hpu = move(arguments(sample), "hpu")
        faked = fake(on_hpu, mode)
        try:
            with mode:
                predicted = tensors(call(variant, faked))
        except (DataDependentOutputException, DynamicOutputShapeException):
            continue
        actual = tensors(call(variant, on_hpu))
        for real, plan in zip(actual, predicted, strict=True):
            assert real.shape == plan.shape, f"sample {index}\n{sample.summary()}"
            assert _strides(real) == _strides(plan), f"sample {index}\n{sample.summary()}"
        num_compared += 1
    has_prediction = variant.name not in misses.WITHOUT_PREDICTION
    assert bool(num_compared) == has_prediction


@pytest.mark.parametrize(
    "dtypes",
    [
        (torch.bfloat16, torch.int32),
        pytest.param(HPU_DTYPES, marks=pytest.mark.slow, id="all"),
    ],
)
@pytest.mark.parametrize("variant", _params(FORWARD))
def test_each_layout_in_each_dtype_equals_cpu_and_prediction(
    variant: Variant, dtypes: Sequence[torch.dtype]
) -> None:
    each_dtype = [each for each in in_each_dtype(variant) if each.dtype in dtypes]

    def compare(variant: Variant, max_samples: int) -> None:
        for each in each_dtype:
            _compare_layouts(each, max_samples)

    if each_dtype:
        _run(compare, variant, 1, misses.LAYOUTS)


def _compare_layouts(variant: Variant, max_samples: int) -> None:
    for sample in variant.samples("hpu", max_samples):
        for layout in get_args(Layout):
            given = arguments(sample)
            laid_out = given if layout == "given" else lay_out(given, layout)
            if laid_out is None:
                continue
            on_cpu, on_hpu = (move(laid_out, device) for device in ("cpu", "hpu"))
            mode = FakeTensorMode()
            faked = fake(on_hpu, mode)
            try:
                expected = call(variant, on_cpu)
            except (IndexError, RuntimeError, ValueError):
                continue  # not what the operator takes
            where = f"{variant.dtype}, {layout}"
            actual = call(variant, on_hpu)
            check = "close" if variant.name in misses.OTHER_ORDER else _check(variant)
            found = difference(expected, actual, check)
            assert found is None, f"{where}: {found}\n{sample.summary()}"
            try:
                with mode:
                    predicted = tensors(call(variant, faked))
            except (DataDependentOutputException, DynamicOutputShapeException):
                continue
            for real, plan in zip(tensors(actual), predicted, strict=True):
                assert real.shape == plan.shape, where
                assert _strides(real) == _strides(plan), where


@pytest.mark.slow
@pytest.mark.parametrize("variant", _params(FORWARD))
def test_compiled_in_each_dtype_equals_cpu(variant: Variant) -> None:
    each_dtype = in_each_dtype(variant)

    def compare(variant: Variant, max_samples: int) -> None:
        for each in each_dtype:
            _compare_compiled(each, max_samples)

    if each_dtype:
        _run(compare, variant, 1, misses.COMPILED)


def _compare_compiled(variant: Variant, max_samples: int) -> None:
    torch.compiler.reset()
    compiled = torch.compile(variant.op.op, backend="hpu_backend", dynamic=False)
    for sample in variant.samples("hpu", max_samples):
        on_cpu, on_hpu = (move(arguments(sample), device) for device in ("cpu", "hpu"))
        expected = call(variant, on_cpu)
        input_, args, kwargs = on_hpu
        seed_all(1)
        actual = compiled(input_, *args, **kwargs)
        is_close = variant.name in misses.OTHER_ORDER | misses.DECOMPOSED
        check = "close" if is_close else _check(variant)
        found = difference(expected, actual, check)
        assert found is None, f"{variant.dtype}: {found}\n{sample.summary()}"
        found = difference(*on_hpu_alone(on_cpu, on_hpu), check)
        assert found is None, f"arguments in {variant.dtype}: {found}\n{sample.summary()}"


def _strides(tensor: torch.Tensor) -> list[int]:
    """Strides of the dimensions that have one: more than one element, in a tensor not empty."""
    if tensor.layout != torch.strided or not tensor.numel():
        return []
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride for size, stride in pairs if size > 1]


def test_enough_variants_equal_the_cpu() -> None:
    """The counts come from the tables that mark the misses, so none can be marked away."""
    not_equal = misses.FORWARD.keys() | misses.UNDEFINED_CONTENTS | misses.NOT_DETERMINISTIC
    assert len(FORWARD) - len(not_equal) >= 590
    assert len(BACKWARD) - len(misses.BACKWARD) - len(misses.LAST_BITS) >= 500


def test_tables_name_known_variants() -> None:
    """An entry that names nothing would lower no count and mark no test."""
    known = {variant.name for variant in FORWARD}
    sets = misses.UNDEFINED_CONTENTS, misses.NOT_DETERMINISTIC, misses.WITHOUT_PREDICTION
    assert known.issuperset(chain(misses.FORWARD, misses.STRIDES, misses.LAYOUTS, *sets))
    assert misses.BACKWARD.keys() | misses.LAST_BITS <= {variant.name for variant in BACKWARD}
