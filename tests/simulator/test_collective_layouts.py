"""Every collective on tensors of every layout and type, on 2 and 4 ranks, to the bit.

A tensor lies in a larger one that is compared as a whole, so that nothing beside it may change. All
layouts and types of a collective are one check; what fails is named. All checks of a number of
ranks run in one spawn; each is a test of its own here.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.simulator import checks

_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16, *_FP8),
    *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
)
_WITHOUT_FP8 = tuple(dtype for dtype in _DTYPES if dtype not in _FP8)
_UNSIGNED = (torch.uint8, torch.bool, *_FP8)
_SHAPE = (4, 2, 3, 2)
_SHAPES = {"nothing": (0, 2, 3, 2), "scalar": ()}
_LAYOUTS = (
    *("contiguous", "offset", "strided", "transposed", "channels_last", "negative", "cloned"),
    *_SHAPES,
)
_UNTOUCHED = 1


class _Placed:
    """A tensor that lies in some layout in a larger one, `base`."""

    def __init__(self, layout: str, value: Tensor, device: str = "hpu") -> None:
        shape = value.shape
        size = math.prod(shape)
        if layout == "offset":
            self.base = self._base((size + 5,), value, device)
            self.tensor = self.base[3 : 3 + size].view(shape)
        elif layout == "strided":
            self.base = self._base((*shape[:-1], 2 * shape[-1]), value, device)
            self.tensor = self.base[..., ::2]
        elif layout == "transposed":
            self.base = self._base(shape[::-1], value, device)
            self.tensor = self.base.permute(*range(len(shape) - 1, -1, -1))
        elif layout == "channels_last":
            self.base = self._base((shape[0], *shape[2:], shape[1]), value, device)
            self.tensor = self.base.permute(0, 3, 1, 2)
            assert self.tensor.is_contiguous(memory_format=torch.channels_last)
        else:
            self.base = self.tensor = self._base(shape, value, device)
            if layout == "negative":
                self.tensor = torch._neg_view(self.base)
            if layout == "cloned":
                expanded = self.base[:1].expand(shape)
                assert expanded.stride(0) == 0
                self.base = self.tensor = expanded.clone()
        self.tensor.copy_(value.to(device))

    @staticmethod
    def _base(shape: tuple[int, ...], value: Tensor, device: str) -> Tensor:
        return torch.full(shape, _UNTOUCHED).to(value.dtype).to(device)


def _combinations(
    dtypes: tuple[torch.dtype, ...] = _DTYPES, without: tuple[str, ...] = ()
) -> Iterator[Callable[[], contextlib.AbstractContextManager[tuple[str, list[Tensor]]]]]:
    """Contexts with a layout and what each rank begins with; an error in them names both."""
    for layout, dtype in itertools.product(_LAYOUTS, dtypes):
        if layout in without or (layout == "negative" and dtype in _UNSIGNED):
            continue

        @contextlib.contextmanager
        def combination(layout: str = layout, dtype: torch.dtype = dtype):
            try:
                whole = checks.inputs(*_SHAPES.get(layout, _SHAPE), dtype=torch.float64)
                yield layout, [value.to(dtype) for value in whole]
            except Exception as error:
                raise AssertionError(f"{layout} tensors of {dtype}: {error}") from error

        yield combination


def _expect(layout: str, placed: _Placed, expected: Tensor) -> None:
    reference = _Placed(layout, expected, "cpu")
    found, wanted = placed.base.cpu(), reference.base
    if found.dtype in _FP8:
        found, wanted = found.float(), wanted.float()
    assert torch.equal(found, wanted), f"got {found.tolist()}, expected {wanted.tolist()}"


def _sum(given: list[Tensor]) -> Tensor:
    """Integers that every type holds exactly; fp8 is added up in fp32."""
    dtype = given[0].dtype
    if dtype == torch.bool:
        return torch.stack(given).any(0)
    return torch.stack([value.double() for value in given]).sum(0).to(dtype)


def _world() -> int:
    return dist.get_world_size()


def _blank(layout: str, like: Tensor, num_parts: int | None = None) -> _Placed:
    """What a collective shall write; with `num_parts` of `like`, end to end."""
    shape = like.shape if num_parts is None else _end_to_end([like] * num_parts).shape
    return _Placed(layout, torch.full(shape, _UNTOUCHED).to(like.dtype))


def _end_to_end(parts: list[Tensor]) -> Tensor:
    if parts[0].dim() == 0:
        return torch.stack(parts)
    joined = torch.cat([part.view(torch.uint8) if part.dtype in _FP8 else part for part in parts])
    return joined.view(parts[0].dtype)


def check_broadcast(rank):
    for combination in _combinations():
        with combination() as (layout, given):
            mine = _Placed(layout, given[rank])
            dist.broadcast(mine.tensor, src=_world() - 1)
            _expect(layout, mine, given[-1])


def check_broadcast_of_int16(rank):
    for combination in _combinations((torch.int16,)):
        with combination() as (layout, given):
            mine = _Placed(layout, given[rank])
            dist.broadcast(mine.tensor, src=0)
            _expect(layout, mine, given[0])


def check_all_reduce(rank):
    for combination in _combinations():
        with combination() as (layout, given):
            mine = _Placed(layout, given[rank])
            dist.all_reduce(mine.tensor)
            _expect(layout, mine, _sum(given))


def check_all_reduce_coalesced(rank):
    for combination in _combinations():
        with combination() as (layout, given):
            mine = [_Placed(layout, given[rank]), _Placed(layout, given[rank - 1])]
            with dist._coalescing_manager():
                for placed in mine:
                    dist.all_reduce(placed.tensor)
            for placed in mine:
                _expect(layout, placed, _sum(given))


def check_reduce(rank):
    for combination in _combinations():
        with combination() as (layout, given):
            mine = _Placed(layout, given[rank])
            dist.reduce(mine.tensor, dst=1)
            if rank == 1:
                _expect(layout, mine, _sum(given))


def check_all_gather(rank):
    for combination in _combinations():
        with combination() as (layout, given):
            outputs = [_blank(layout, given[0]) for _ in given]
            dist.all_gather([each.tensor for each in outputs], _Placed(layout, given[rank]).tensor)
            for output, value in zip(outputs, given, strict=True):
                _expect(layout, output, value)


def check_all_gather_into_tensor(rank):
    for combination in _combinations():
        with combination() as (layout, given):
            output = _blank(layout, given[0], _world())
            dist.all_gather_into_tensor(output.tensor, _Placed(layout, given[rank]).tensor)
            _expect(layout, output, _end_to_end(given))


def check_all_gather_into_tensor_coalesced(rank):
    for combination in _combinations(without=("scalar",)):
        with combination() as (layout, given):
            outputs = [_blank(layout, given[0], _world()) for _ in range(2)]
            with dist._coalescing_manager():
                for output in outputs:
                    dist.all_gather_into_tensor(output.tensor, _Placed(layout, given[rank]).tensor)
            for output in outputs:
                _expect(layout, output, _end_to_end(given))


def check_all_gather_into_a_tensor_with_the_input(rank):
    for place in range(_world()):
        given = checks.inputs(3)
        output = _Placed("contiguous", torch.zeros(3 * _world()))
        mine = output.tensor.chunk(_world())[(rank + place) % _world()]
        mine.copy_(given[rank])
        dist.all_gather_into_tensor(output.tensor, mine)
        _expect("contiguous", output, torch.cat(given))


def check_gather(rank):
    for combination in _combinations():
        with combination() as (layout, given):
            outputs = [_blank(layout, given[0]) for _ in given] if rank == 0 else None
            tensors = outputs and [each.tensor for each in outputs]
            dist.gather(_Placed(layout, given[rank]).tensor, tensors, dst=0)
            for output, value in zip(outputs or (), given, strict=False):
                _expect(layout, output, value)


def check_scatter(rank):
    for combination in _combinations():
        with combination() as (layout, given):
            output = _blank(layout, given[0])
            parts = [_Placed(layout, value).tensor for value in given] if rank == 1 else None
            dist.scatter(output.tensor, parts, src=1)
            _expect(layout, output, given[rank])


def check_scatter_of_a_list_with_the_output(rank):
    given = checks.inputs(3)
    parts = [value.to("hpu") for value in given]
    output = parts[-1] if rank == 0 else torch.zeros(3, device="hpu")
    dist.scatter(output, parts if rank == 0 else None, src=0)
    checks.expect(output, given[rank])


def check_reduce_scatter(rank):
    for combination in _combinations(_WITHOUT_FP8):
        with combination() as (layout, given):
            output = _blank(layout, given[0])
            parts = [_Placed(layout, given[(rank + i) % _world()]).tensor for i in range(_world())]
            dist.reduce_scatter(output.tensor, parts)
            _expect(layout, output, _sum(given))


def check_reduce_scatter_tensor(rank):
    for combination in _combinations(without=("scalar",)):
        with combination() as (layout, given):
            output = _blank(layout, given[0])
            whole = _end_to_end([given[(rank + i) % _world()] for i in range(_world())])
            dist.reduce_scatter_tensor(output.tensor, _Placed(layout, whole).tensor)
            _expect(layout, output, _sum(given))


def check_reduce_scatter_tensor_coalesced(rank):
    for combination in _combinations(without=("scalar",)):
        with combination() as (layout, given):
            outputs = [_blank(layout, given[0]) for _ in range(2)]
            whole = _end_to_end([given[(rank + i) % _world()] for i in range(_world())])
            with dist._coalescing_manager():
                for output in outputs:
                    dist.reduce_scatter_tensor(output.tensor, _Placed(layout, whole).tensor)
            for output in outputs:
                _expect(layout, output, _sum(given))


def check_all_to_all(rank):
    for combination in _combinations((*_DTYPES, torch.int16)):
        with combination() as (layout, given):
            outputs = [_blank(layout, given[0]) for _ in given]
            parts = [_Placed(layout, given[(rank + i) % _world()]).tensor for i in range(_world())]
            if given[0].numel() % 2 and given[0].itemsize == 1 and _world() % 2:
                continue  # refused
            dist.all_to_all([each.tensor for each in outputs], parts)
            for i, output in enumerate(outputs):
                _expect(layout, output, given[(rank + i) % _world()])


def check_all_to_all_single(rank):
    for combination in _combinations(without=("scalar",)):
        with combination() as (layout, given):
            output = _blank(layout, given[0])
            dist.all_to_all_single(output.tensor, _Placed(layout, given[rank]).tensor)
            parts = [value.chunk(_world())[rank] for value in given]
            _expect(layout, output, _end_to_end(parts) if given[0].numel() else given[0])


def check_all_to_all_single_of_unequal_parts(rank):
    for combination in _combinations(_WITHOUT_FP8, without=("scalar", "nothing")):
        with combination() as (layout, given):
            sizes = [0] * _world()
            sizes[0], sizes[-1] = 1, 3  # what every rank sends
            received = [sizes[rank]] * _world()
            expected = torch.cat([value.split(sizes)[rank] for value in given])
            layout = layout if sum(received) else "contiguous"
            output = _Placed(layout, torch.full_like(expected, _UNTOUCHED))
            mine = _Placed(layout, given[rank]).tensor
            dist.all_to_all_single(output.tensor, mine, received, sizes)
            _expect(layout, output, expected)


def check_all_to_all_single_in_place(rank):
    given = [torch.arange(8.0) + 10 * i for i in range(_world())]
    mine = _Placed("contiguous", given[rank])
    dist.all_to_all_single(mine.tensor, mine.tensor)
    _expect("contiguous", mine, torch.cat([value.chunk(_world())[rank] for value in given]))


def check_send_and_receive(rank):
    for combination in _combinations():
        with combination() as (layout, given):
            output = _blank(layout, given[0])
            send = dist.isend(_Placed(layout, given[rank]).tensor, (rank + 1) % _world())
            dist.recv(output.tensor, (rank - 1) % _world())
            send.wait()
            _expect(layout, output, given[rank - 1])


def check_batched_send_and_receive(rank):
    for combination in _combinations():
        with combination() as (layout, given):
            output = _blank(layout, given[0])
            mine = _Placed(layout, given[rank]).tensor
            operations = [
                dist.P2POp(dist.isend, mine, (rank + 1) % _world()),
                dist.P2POp(dist.irecv, output.tensor, (rank - 1) % _world()),
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            _expect(layout, output, given[rank - 1])


def check_nobody_is_told_before_the_result_is_there(rank):
    given = checks.inputs(64, 64, dtype=torch.int64)
    for i in range(20):
        mine = _Placed("transposed", given[rank])
        work = dist.all_reduce(mine.tensor, async_op=True)
        if i % 2:
            (value,) = work.get_future().wait()
            assert value.data_ptr() == mine.tensor.data_ptr()
        else:
            deadline = time.monotonic() + 60
            while not work.is_completed() and time.monotonic() < deadline:
                pass
        _expect("transposed", mine, _sum(given))


def check_tensors_whose_elements_share_memory(rank):
    expanded = torch.ones(1, 4, device="hpu").expand(4, 4)
    output = torch.zeros(4, 4, device="hpu")
    for refused in (
        lambda: dist.all_reduce(expanded),
        lambda: dist.broadcast(expanded, src=0),
        lambda: dist.recv(expanded, (rank + 1) % _world()),
        lambda: dist.all_to_all_single(expanded, output),
        lambda: dist.reduce_scatter_tensor(expanded, torch.zeros(4 * _world(), 4, device="hpu")),
    ):
        with pytest.raises(RuntimeError, match=r"elements share memory.*tensor\.clone\(\)"):
            refused()
    dist.all_to_all_single(output, expanded)  # only read
    assert output.tolist() == [[1] * 4] * 4


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def failures(request, tmp_path_factory):
    return checks.run(__name__, tmp_path_factory.mktemp("ranks"), num_ranks=request.param)


@pytest.mark.parametrize("name", checks.collect(dict(globals())))
def test_collective(name, failures):
    checks.expect_success(name, failures)
