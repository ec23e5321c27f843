"""Ranks that Lightning, torchrun, SLURM or Open MPI starts train one model, each on its card."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.ports import free_port
from tests.launch.started import found, program, run_program, started

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
SIMULATE = (
    sys.executable,
    "-m",
    "lightning_gaudi.tools.command_line",
    "simulate",
    "--cards",
    "8",
    "--",
)


def _modules(ranks: list[dict[str, Any]]) -> list[str]:
    return [rank["module"] for rank in ranks]


def _check(ranks: list[dict[str, Any]], num_ranks: int, *environments: str) -> None:
    """All ranks trained one model, and each knows who it is."""
    assert [rank["world_size"] for rank in ranks] == [num_ranks] * num_ranks
    assert [rank["id"] for rank in ranks] == [str(rank) for rank in range(num_ranks)]
    assert {rank["environment"] for rank in ranks} == {*environments}
    assert {str(rank["weights"]) for rank in ranks} == {str(ranks[0]["weights"])}
    assert {rank["steps"] for rank in ranks} == {16 // num_ranks}


def _run_each(folder: Path, envs: list[Mapping[str, str]], **settings: Any) -> list[dict[str, Any]]:
    """Start the program once for each environment, as srun and mpirun do."""
    with contextlib.ExitStack() as stack:
        command = program(folder, **settings)
        runs = [stack.enter_context(started(command, folder, env)) for env in envs]
        for run in runs:
            assert run.wait() == 0, run.output
    return found(folder)


@pytest.mark.slow
def test_the_script_is_run_again_for_each_rank(tmp_path: Path) -> None:
    """Each has used its HPU before training, and goes on with the card that it has."""
    env = {"HABANA_VISIBLE_MODULES": "2,3,6,7", "EARLY": "1"}
    ranks = run_program(tmp_path, devices=2, env=env)
    _check(ranks, 2, "LightningEnvironment")
    assert _modules(ranks) == ["2", "3"]


@pytest.mark.slow
def test_ranks_are_spawned(tmp_path: Path) -> None:
    ranks = run_program(tmp_path, devices=[4, 5], strategy="ddp_spawn")
    _check(ranks, 2, "LightningEnvironment")
    assert _modules(ranks) == ["4", "5"]


@pytest.mark.slow
def test_four_ranks_on_the_visible_modules(tmp_path: Path) -> None:
    env = {"HABANA_VISIBLE_MODULES": "2,3,6,7"}
    ranks = run_program(tmp_path, *SIMULATE, devices=4, env=env)
    _check(ranks, 4, "LightningEnvironment")
    assert _modules(ranks) == ["2", "3", "6", "7"]


@pytest.mark.slow
@pytest.mark.parametrize("prefix", [(), SIMULATE])
def test_torchrun(prefix: tuple[str, ...], tmp_path: Path) -> None:
    launcher = (*prefix, *TORCHRUN, "--nproc-per-node", "2", "--master-port", str(free_port()))
    ranks = _run_torchrun(tmp_path, [launcher], devices=[5, 1])
    _check(ranks, 2, "TorchElasticEnvironment")
    assert _modules(ranks) == ["5", "1"]


def _run_torchrun(
    folder: Path, launchers: list[tuple[str, ...]], **settings: Any
) -> list[dict[str, Any]]:
    with contextlib.ExitStack() as stack:
        script = program(folder, **settings)[1:]
        runs = [stack.enter_context(started([*each, *script], folder)) for each in launchers]
        for run in runs:
            assert run.wait() == 0, run.output
    return found(folder)


@pytest.mark.slow
def test_torchrun_on_two_nodes(tmp_path: Path) -> None:
    """Each node has eight cards of its own."""
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()!s}")
    launchers = [
        (*TORCHRUN, "--nnodes=2", "--nproc-per-node=2", f"--node-rank={node}", *meeting)
        for node in range(2)
    ]
    ranks = _run_torchrun(tmp_path, launchers, devices=2, num_nodes=2)
    _check(ranks, 4, "TorchElasticEnvironment")
    assert _modules(ranks) == ["0", "1", "0", "1"]
    assert [rank["local_rank"] for rank in ranks] == [0, 1, 0, 1]


def _slurm(rank: int, num_ranks: int, per_node: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NAME": "train",
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": str(num_ranks),
        "SLURM_NTASKS_PER_NODE": str(per_node),
        "SLURM_NNODES": str(num_ranks // per_node),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % per_node),
        "SLURM_NODEID": str(rank // per_node),
        "SLURM_NODELIST": "localhost",
    }


@pytest.mark.slow
def test_slurm_on_two_nodes(tmp_path: Path) -> None:
    port = {"MASTER_PORT": str(free_port())}
    envs = [_slurm(rank, 4, per_node=2) | port for rank in range(4)]
    ranks = _run_each(tmp_path, envs, devices=2, num_nodes=2)
    _check(ranks, 4, "SLURMEnvironment")
    assert _modules(ranks) == ["0", "1", "0", "1"]
    assert [rank["node_rank"] for rank in ranks] == [0, 0, 1, 1]


def _open_mpi(rank: int, num_ranks: int, per_node: int) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_SIZE": str(num_ranks),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % per_node),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(per_node),
        "OMPI_COMM_WORLD_NODE_RANK": str(rank % per_node),
    }


@pytest.mark.slow
def test_open_mpi_on_one_node_needs_nothing_more(tmp_path: Path) -> None:
    """Modules that mpirun gave its ranks are kept; SLURM's variables are of the allocation."""
    job = {"PMIX_NAMESPACE": f"prterun-{tmp_path}@1", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
    envs = [_open_mpi(r, 2, 2) | job | {"HLS_MODULE_ID": str(6 + r)} for r in range(2)]
    ranks = _run_each(tmp_path, envs, devices=[6, 7])
    _check(ranks, 2, "OpenMPIEnvironment")
    assert _modules(ranks) == ["6", "7"]


@pytest.mark.slow
def test_open_mpi_on_two_nodes(tmp_path: Path) -> None:
    meeting = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    envs = [_open_mpi(rank, 4, per_node=2) | meeting for rank in range(4)]
    ranks = _run_each(tmp_path, envs, devices=2, num_nodes=2)
    _check(ranks, 4, "OpenMPIEnvironment")
    assert [rank["node_rank"] for rank in ranks] == [0, 0, 1, 1]


@pytest.mark.slow
def test_intel_mpi_and_mpich(tmp_path: Path) -> None:
    envs = [
        {"PMI_SIZE": "2", "PMI_RANK": rank, "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": "2"}
        for rank in ("0", "1")
    ]
    ranks = _run_each(tmp_path, envs, devices=2)
    _check(ranks, 2, "HydraEnvironment")
    assert _modules(ranks) == ["0", "1"]


def _pod(rank: int, num_pods: int, port: int) -> dict[str, str]:
    return {
        "WORLD_SIZE": str(num_pods),
        "RANK": str(rank),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "LIGHTNING_GAUDI_SIMULATE_SERVER": f"pod{rank}",
    }


@pytest.mark.slow
def test_a_pytorchjob_with_a_card_a_pod_needs_no_settings(tmp_path: Path) -> None:
    port = free_port()
    ranks = _run_each(tmp_path, [_pod(rank, 2, port) for rank in range(2)], devices=1)
    _check(ranks, 2, "RankEnvironment")
    assert [rank["node_rank"] for rank in ranks] == [0, 1]


@pytest.mark.slow
def test_a_pytorchjob_whose_pods_start_their_ranks(tmp_path: Path) -> None:
    port = free_port()
    envs = [_pod(rank, 2, port) for rank in range(2)]
    ranks = _run_each(tmp_path, envs, devices=2, num_nodes=2)
    _check(ranks, 4, "NodeEnvironment", "LightningEnvironment")  # of those that Lightning starts
    assert [rank["node_rank"] for rank in ranks] == [0, 0, 1, 1]
    assert _modules(ranks) == ["0", "1", "0", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_ranks_of_which_each_sees_one_card(devices: int, tmp_path: Path) -> None:
    """As scripts between mpirun and the program leave them; the vendor's would end the second."""
    envs = [_open_mpi(r, 2, 2) | {"HABANA_VISIBLE_MODULES": str(6 + r)} for r in range(2)]
    ranks = _run_each(tmp_path, envs, devices=devices)
    _check(ranks, 2, "OpenMPIEnvironment")
    assert _modules(ranks) == ["6", "7"]


@pytest.mark.slow
def test_ranks_that_were_given_the_same_module_are_refused(tmp_path: Path) -> None:
    env = {"HLS_MODULE_ID": "1"}
    command = [*TORCHRUN, "--nproc-per-node=2", "--master-port", str(free_port())]
    with started([*command, *program(tmp_path, devices=2)[1:]], tmp_path, env) as run:
        assert run.wait() == 1
        assert "HLS_MODULE_ID=1 has the ranks 0, 1 of " in run.output
        run.wait_for_all_to_end(5)
