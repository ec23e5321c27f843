"""Finds loaders that change shapes, and graphs that were compiled again for other ones."""

from __future__ import annotations

from collections.abc import Iterator

from .finding import Finding, Weight
from .merging import judged_steps, lines_of
from .record import Line, Loader, Record

_TRAINING = "training"
_SOURCE = (
    "Handling Dynamic Shapes, https://docs.habana.ai/en/latest/PyTorch/"
    "Model_Optimization_PyTorch/Dynamic_Shapes.html"
)
_MIN_SHAPES = 3
_MIN_LATE_SHAPES = 2
_NUM_SHOWN = 4


def find(record: Record) -> Iterator[Finding]:
    """Yields loaders that change shapes, and lines that have graphs compiled again besides."""
    explained: set[int] = set()
    for loader in record.loaders:
        if loader.stage != _TRAINING:
            continue
        new_in = _steps_of_new_shapes(loader)
        # A loop may fetch a batch ahead, as accelerate's loaders do, and compute it a step later.
        explained |= {step + later for step in new_in for later in (0, 1)}
        if _is_dynamic(loader):
            yield _dynamic(loader, len(set(new_in) & set(judged_steps(record))), record)
        elif _has_odd_batches(loader):
            yield _odd_batches(loader)
    yield from _recompilations(record, explained)


def num_recompilations(record: Record) -> int:
    """Returns the number of graphs of training that were compiled again for other shapes."""
    return sum(step.recompilations for step in record.steps)


def _steps_of_new_shapes(loader: Loader) -> list[int]:
    """Returns, for each shape, the step in which it came first."""
    return [loader.steps[loader.batches.index(number)] for number in range(len(loader.shapes))]


def _is_dynamic(loader: Loader) -> bool:
    """Returns whether new shapes keep coming that differ in more than the number of samples."""
    half = len(loader.batches) // 2
    late = set(loader.batches[half:]) - set(loader.batches[:half])
    return (
        not loader.has_bounded_shapes
        and len(_beyond_the_first(loader)) >= _MIN_SHAPES
        and len(late) >= _MIN_LATE_SHAPES
    )


def _beyond_the_first(loader: Loader) -> set[str]:
    """Returns the distinct shapes without their first dimension, which counts samples."""
    return {str({name: s[1:] for name, s in shape.items()}) for shape in loader.shapes}


def _has_odd_batches(loader: Loader) -> bool:
    return (
        not loader.drops_last
        and len(loader.shapes) > 1
        and len(_beyond_the_first(loader)) == 1
        and not loader.has_bounded_shapes
    )


def _dynamic(loader: Loader, num_steps: int, record: Record) -> Finding:
    shown = ", ".join(_show(shape) for shape in loader.shapes[:_NUM_SHOWN])
    more = " and others" if len(loader.shapes) > _NUM_SHOWN else ""
    again = num_recompilations(record)
    graphs = f" Here {again} graphs were compiled again." if again else ""
    buckets = f" to {loader.buckets}" if loader.buckets else " to a few lengths"
    how = "pad_to_multiple_of" if record.trainer == "transformers" else "the same"
    return Finding(
        rule="dynamic-shapes",
        weight=Weight.COMPILES,
        file=loader.file,
        line=loader.line,
        function="",
        message=f"{len(loader.shapes)} shapes in {len(loader.batches)} batches of {loader.name}, "
        f"made by {loader.collate}: {shown}{more}. Each is compiled anew.{graphs}",
        fix=f"Pad{buckets}, the boundaries that waste least for these lengths: "
        f"lightning_gaudi.data.BucketDataLoader, or {how} in the function that makes batches.",
        num_steps=num_steps,
        count=len(loader.shapes),
        source=_SOURCE,
    )


def _odd_batches(loader: Loader) -> Finding:
    return Finding(
        rule="odd-last-batch",
        weight=Weight.NUMBERS,
        file=loader.file,
        line=loader.line,
        function="",
        message=f"the last batch of an epoch is smaller, {_show(loader.shapes[-1])}: another shape "
        "to compile for.",
        fix="Pass drop_last=True to the DataLoader.",
        count=1,
        source=_SOURCE,
    )


def _show(shape: dict[str, list[int]]) -> str:
    """Returns name and shape of the first of a batch's tensors; the others vary with it."""
    name, sizes = next(iter(shape.items()))
    return f"{name} {sizes}"


def _recompilations(record: Record, explained: set[int]) -> Iterator[Finding]:
    """Yields lines that had graphs compiled again, in steps in which no loader gave a new shape."""
    for line, steps in lines_of(record, ("graph", "compilation"), _TRAINING):
        unexplained = [step for step in steps if step not in explained]
        if line.what == "recompiled" and len(unexplained) > 1:
            yield _recompiled(line, unexplained)


def _recompiled(line: Line, steps: list[int]) -> Finding:
    causes = "; ".join(list(line.details)[:_NUM_SHOWN])
    return Finding(
        rule="recompilation",
        weight=Weight.COMPILES,
        file=line.file,
        line=line.line,
        function=line.function,
        message=f"a graph that was known is compiled again for other shapes: {causes}.",
        fix="Keep the shapes of all steps the same: pad, or take out what depends on values.",
        num_steps=len(steps),
        count=line.count,
        via=line.via,
        source=_SOURCE,
    )
