"""What HCCL must do on every rank; run by torchrun, and by the ranks of fit.py when they are done.

Each check appends a line of JSON to rank{n}.jsonl: its name, and null or what went wrong. So a
rank that hangs still tells how far it came.

HCCL reduces by sum, minimum, maximum and product; not by average. Source: bridge 1.19,
habana_kernels/hccl_kernels.cpp. It reduces integers as fp32: exact up to 2^24.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lightning_gaudi._core import collectives, vendor
from lightning_gaudi.distributed.devices import select_card

Op = dist.ReduceOp


def _filled(value: float, size: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((size,), value, dtype=dtype).to("hpu")


def check_backend(rank: int, size: int) -> None:
    assert dist.get_backend() == "hccl"
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size)


def check_each_rank_drives_a_module_of_its_own(rank: int, size: int) -> None:
    modules = collectives.gather_objects(vendor.selected_module())
    assert len(set(modules)) == size, modules
    assert _filled(0).device == torch.device("hpu", 0)


def check_all_reduce_sum(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.int64):
        tensor = _filled(rank + 1, dtype=dtype)
        dist.all_reduce(tensor)
        assert tensor.dtype == dtype
        assert tensor.tolist() == [size * (size + 1) // 2] * 3, dtype


def check_all_reduce_of_other_operations(rank: int, size: int) -> None:
    for op, expected in ((Op.MAX, size), (Op.MIN, 1)):
        tensor = _filled(rank + 1)
        dist.all_reduce(tensor, op=op)
        assert tensor.tolist() == [expected] * 3, op


def check_all_reduce_of_many_elements(rank: int, size: int) -> None:
    """16 MiB and a little: not a multiple of anything."""
    tensor = _filled(rank + 1, size=2**22 + 3)
    dist.all_reduce(tensor)
    expected = size * (size + 1) / 2
    assert tensor[[0, 1, 2**21, -2, -1]].tolist() == [expected] * 5
    assert tensor.min().item() == tensor.max().item() == expected


def check_all_reduces_under_way_at_once(rank: int, size: int) -> None:
    tensors = [_filled(rank + i) for i in range(3)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    total = size * (size - 1) // 2
    assert [tensor.tolist() for tensor in tensors] == [[total + i * size] * 3 for i in range(3)]


def check_broadcast(rank: int, size: int) -> None:
    for source in (0, size - 1):
        tensor = _filled(rank + 1)
        dist.broadcast(tensor, src=source)
        assert tensor.tolist() == [source + 1] * 3


def check_reduce(rank: int, size: int) -> None:
    tensor = _filled(rank + 1)
    dist.reduce(tensor, dst=0)
    if rank == 0:
        assert tensor.tolist() == [size * (size + 1) // 2] * 3


def check_all_gather(rank: int, size: int) -> None:
    parts = [_filled(0) for _ in range(size)]
    dist.all_gather(parts, _filled(rank + 1))
    assert [part.tolist() for part in parts] == [[i + 1] * 3 for i in range(size)]
    whole = _filled(0, size=3 * size)
    dist.all_gather_into_tensor(whole, _filled(rank + 1))
    assert whole.view(size, 3)[:, 0].tolist() == [i + 1 for i in range(size)]


def check_reduce_scatter(rank: int, size: int) -> None:
    output = _filled(0, size=2)
    dist.reduce_scatter_tensor(output, torch.arange(2.0 * size).to("hpu"))
    assert output.tolist() == [size * 2.0 * rank, size * (2.0 * rank + 1)]


def check_all_to_all(rank: int, size: int) -> None:
    output = _filled(0, size=size)
    dist.all_to_all_single(output, torch.arange(size * rank, size * (rank + 1.0)).to("hpu"))
    assert output.tolist() == [size * other + rank for other in range(size)]


def check_send_and_receive(rank: int, size: int) -> None:
    """A ring from rank to rank; rank 0 starts it."""
    tensor = _filled(0)
    if rank == 0:
        dist.send(_filled(1), 1)
        dist.recv(tensor, size - 1)
        assert tensor.tolist() == [size] * 3
    else:
        dist.recv(tensor, rank - 1)
        dist.send(tensor + 1, (rank + 1) % size)


def check_barrier(rank: int, size: int) -> None:
    """No rank leaves before the last has come; the ranks of a server have one clock."""
    for meet in (dist.barrier, collectives.barrier):
        time.sleep(0.05 * rank)
        came = time.monotonic()
        meet()
        times = collectives.gather_objects((came, time.monotonic()))
        assert max(came for came, _ in times) <= min(left for _, left in times), times


def check_subgroup(rank: int, size: int) -> None:
    first = dist.new_group([0, 1])
    if rank < 2:
        tensor = _filled(rank + 1)
        dist.all_reduce(tensor, group=first)
        assert tensor.tolist() == [3] * 3


def check_objects(rank: int, size: int) -> None:
    """Over the group on the CPU, which must be usable beside HCCL."""
    assert collectives.gather_objects({"rank": rank}) == [{"rank": i} for i in range(size)]
    assert collectives.broadcast_object(f"from {rank}", src=size - 1) == f"from {size - 1}"
    assert collectives.decide(rank == 0, all_ranks=False)
    assert not collectives.decide(rank == 0, all_ranks=True)


def check_mean(rank: int, size: int) -> None:
    """The package's own, as HCCL has none."""
    for device in ("hpu", "cpu"):
        tensor = torch.full((2,), rank + 1.0).to(device)
        assert collectives.reduce(tensor).tolist() == [(size + 1) / 2] * 2


def check_ddp_averages_gradients(rank: int, size: int) -> None:
    """1e-4: the products of the local gradients are those of the card."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(8, 8, generator=generator)
    inputs = torch.randn(size, 4, 8, generator=generator)
    layer = nn.Linear(8, 8, bias=False)
    layer.weight.data.copy_(weight if rank == 0 else torch.zeros(8, 8))
    model = DistributedDataParallel(layer.to("hpu"), gradient_as_bucket_view=True)
    assert torch.equal(layer.weight.detach().cpu(), weight), "weights are not those of rank 0"
    model(inputs[rank].to("hpu")).pow(2).mean().backward()
    reference = weight.clone().requires_grad_()
    (inputs @ reference.t()).pow(2).mean().backward()
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad.cpu(), reference.grad, rtol=1e-3, atol=1e-4)
    gradients = collectives.gather_objects(layer.weight.grad.cpu())
    assert all(torch.equal(gradients[0], gradient) for gradient in gradients)


CHECKS: dict[str, Any] = {
    name.removeprefix("check_"): check
    for name, check in globals().items()
    if name.startswith("check_")
}


Results = list[dict[str, str | None]]
"""Of each rank: name of a check -> what went wrong, or None."""


def run_checks(folder: Path, rank: int, size: int) -> None:
    """Run all checks on a rank of a group; what they find is for `read_results`."""
    with (folder / f"rank{rank}.jsonl").open("w", buffering=1) as results:
        for name, check in CHECKS.items():
            try:
                check(rank, size)
                error = None
            except Exception:
                error = traceback.format_exc()
            results.write(json.dumps([name, error]) + "\n")


def read_results(folder: Path, num_ranks: int, missing: str | None = None) -> Results:
    """What the ranks found; a check that one did not come to is `missing`."""
    found: Results = []
    for rank in range(num_ranks):
        file = folder / f"rank{rank}.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        done = dict(json.loads(line) for line in lines)
        found.append({name: done.get(name, f"not reached: {missing}") for name in CHECKS})
    return found


def expect_success(name: str, results: Results) -> None:
    """Fail with what every rank found on which the check `name` failed."""
    failures = [f"rank {rank}: {done[name]}" for rank, done in enumerate(results) if done[name]]
    assert not failures, "\n".join(failures)


def main(folder: Path) -> None:
    """Take a card and connect, in the order that the vendor asks for; then run all checks."""
    rank, size, local_rank = (
        int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    )
    select_card([torch.device("hpu", i) for i in range(size)], local_rank)
    vendor.init_hccl(size, rank, local_rank)
    dist.init_process_group("hccl", timeout=timedelta(minutes=5))
    run_checks(folder, rank, size)
    collectives.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    main(Path(sys.argv[1]))
