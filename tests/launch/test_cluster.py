"""Settings that do not agree with what was started are refused, with both numbers."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch.distributed as dist
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

from _lightning_gaudi_autoload import CLAIMED
from lightning_gaudi._core import vendor
from lightning_gaudi._core.launched import LAUNCHERS
from lightning_gaudi.distributed import cluster
from lightning_gaudi.distributed.cluster import OpenMPIEnvironment
from lightning_gaudi.distributed.devices import select_card
from lightning_gaudi.distributed.launchers import check_spawn
from tests.helpers.ports import free_port
from tests.helpers.tiny import TinyModule, batches, hpu_trainer
from tests.helpers.trainers import run_trainers

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "GROUP_RANK": "0",
}
SRUN = {
    "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
MPIRUN = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
MPIEXEC = {
    "PMI_SIZE": "2",
    "PMI_RANK": "0",
    "MPI_LOCALRANKID": "0",
    "MPI_LOCALNRANKS": "2",
}
JSRUN = {
    "LSB_JOBID": "1",
    "LSB_DJOB_RANKFILE": "ranks",
    "JSM_NAMESPACE_SIZE": "2",
    "JSM_NAMESPACE_RANK": "0",
    "JSM_NAMESPACE_LOCAL_RANK": "0",
}
PODS = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "12321"}
"""Of a PyTorchJob with a process a pod."""
BY_HAND = {"WORLD_SIZE": "2", "LOCAL_RANK": "0"}
SETS = {
    "torchrun": TORCHRUN,
    "mpirun": MPIRUN,
    "mpiexec": MPIEXEC,
    "jsrun": JSRUN,
    "srun": SRUN,
    "ray": BY_HAND | {"RANK": "0"},
    "pods": PODS,
}
"""What each of `LAUNCHERS` sets for the first of two processes."""
STARTED = pytest.mark.parametrize(
    ("variables", "said"),
    [
        (TORCHRUN, r"torchrun has started 2 \(WORLD_SIZE=2\)"),
        (SRUN, r"srun has started 2 \(SLURM_NTASKS=2\)"),
        (MPIRUN, r"mpirun has started 2 \(OMPI_COMM_WORLD_SIZE=2\)"),
        (MPIEXEC, r"mpiexec has started 2 \(PMI_SIZE=2\)"),
        (BY_HAND, r"a launcher has started 2 \(WORLD_SIZE=2\)"),
    ],
    ids=["torchrun", "srun", "mpirun", "mpiexec", "by hand"],
)

SetEnv = Callable[[dict[str, str]], None]


@pytest.fixture
def set_env(monkeypatch: pytest.MonkeyPatch) -> SetEnv:
    """Only these variables of launchers are set."""
    others = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "HLS_MODULE_ID", CLAIMED)
    for name in (*TORCHRUN, *SRUN, *MPIRUN, *MPIEXEC, *JSRUN, *others):
        monkeypatch.delenv(name, raising=False)
    # What a test selects, and the rank that its Trainer has, which warnings ask for.
    monkeypatch.setattr(vendor, "_bound_module", None)
    monkeypatch.setattr(rank_zero_only, "rank", 0, raising=False)

    def set_all(variables: dict[str, str]) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_all


def _fit(**settings: Any) -> None:
    hpu_trainer(max_steps=1, **settings).fit(TinyModule(), batches(1))


@STARTED
@pytest.mark.parametrize(("devices", "num_nodes"), [(4, 1), (2, 2)])
def test_a_world_of_another_size_is_refused(
    variables: dict[str, str], said: str, devices: int, num_nodes: int, set_env: SetEnv
) -> None:
    set_env(variables)
    asked = f"devices={devices} and num_nodes={num_nodes} ask for 4 processes, but {said}"
    with pytest.raises(MisconfigurationException, match=asked):
        _fit(devices=devices, num_nodes=num_nodes)


@STARTED
def test_training_alone_in_each_of_several_processes_is_refused(
    variables: dict[str, str], said: str, set_env: SetEnv
) -> None:
    _fit(devices=1, strategy="ddp")  # it connects the only rank
    dist.destroy_process_group()
    set_env(variables)
    with pytest.raises(MisconfigurationException, match=f"{said}, and each would train alone"):
        _fit(devices=1)


@pytest.mark.parametrize("variables", [SRUN, MPIRUN, MPIEXEC, PODS])
def test_each_process_may_train_a_model_of_its_own(
    variables: dict[str, str], set_env: SetEnv
) -> None:
    set_env(variables)
    _fit(devices=1, plugins=[LightningEnvironment()])


@pytest.mark.parametrize("variables", [TORCHRUN, MPIRUN, MPIEXEC])
def test_another_number_on_this_node_is_refused(variables: dict[str, str], set_env: SetEnv) -> None:
    set_env(variables)
    message = "devices=1, but 2 processes have been started on this node. Pass devices=2, the same"
    with pytest.raises(MisconfigurationException, match=message):
        _fit(devices=1, num_nodes=2)


def test_nodes_that_cannot_find_one_another_are_told_how(set_env: SetEnv) -> None:
    with pytest.raises(MisconfigurationException) as raised:
        _fit(devices=2, num_nodes=2)
    assert "num_nodes=2, but MASTER_ADDR and MASTER_PORT are not set" in str(raised.value)
    assert "torchrun --nnodes=2 --nproc-per-node=2" in str(raised.value)
    set_env({"MASTER_ADDR": "localhost"})
    with pytest.raises(MisconfigurationException, match="num_nodes=2, but MASTER_PORT is not set"):
        _fit(devices=2, num_nodes=2)


@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_one_module_for_all_ranks_is_refused_before_they_start(
    strategy: str, set_env: SetEnv
) -> None:
    set_env({"HLS_MODULE_ID": "1"})
    with pytest.raises(MisconfigurationException, match=r"HLS_MODULE_ID=1 .* each of 2 processes"):
        _fit(devices=2, strategy=strategy)


def test_processes_are_not_spawned_by_started_ones(set_env: SetEnv) -> None:
    set_env(TORCHRUN)
    trainer = hpu_trainer(devices=2, strategy="ddp_spawn")
    message = "one of several that have been started already, as TorchElasticEnvironment finds"
    with pytest.raises(MisconfigurationException, match=message):
        check_spawn(trainer.strategy)


def test_a_local_rank_without_a_device_is_refused(set_env: SetEnv) -> None:
    set_env({"LOCAL_RANK": "2"})
    with pytest.raises(MisconfigurationException, match=r"local rank 2, but devices=2 starts 2"):
        hpu_trainer(devices=2).strategy.setup_environment()


def test_more_ranks_than_visible_modules_are_refused(set_env: SetEnv) -> None:
    set_env({"HABANA_VISIBLE_MODULES": "2,3"})
    with pytest.raises(MisconfigurationException, match=r"devices=4 asks for 4 .* leaves 2 HPUs"):
        hpu_trainer(devices=4)


def test_open_mpi_is_found_without_mpi4py(set_env: SetEnv) -> None:
    set_env(MPIRUN | SRUN | {"SLURM_NTASKS": "7"})
    environment = pl.Trainer(accelerator="hpu", devices=2, logger=False).strategy
    assert isinstance(environment.cluster_environment, OpenMPIEnvironment)
    # Elsewhere Lightning decides, and a user who passes one does.
    assert not isinstance(
        pl.Trainer(accelerator="cpu", logger=False)._accelerator_connector.cluster_environment,
        OpenMPIEnvironment,
    )
    chosen = LightningEnvironment()
    trainer = pl.Trainer(accelerator="hpu", devices=2, plugins=[chosen], logger=False)
    assert trainer._accelerator_connector.cluster_environment is chosen


def _environment(**settings: Any) -> Any:
    return pl.Trainer(accelerator="hpu", logger=False, **settings).strategy.cluster_environment


def test_intel_mpi_and_mpich_are_found(set_env: SetEnv) -> None:
    set_env(MPIEXEC | {"PMI_RANK": "1", "MPI_LOCALRANKID": "1"})
    found = _environment(devices=2)
    assert isinstance(found, cluster.HydraEnvironment)
    assert (found.world_size(), found.global_rank(), found.local_rank()) == (2, 1, 1)
    assert (found.main_address, found.node_rank()) == ("127.0.0.1", 0)
    assert found.main_port == cluster.HydraEnvironment().main_port


def test_lsf_is_lightnings(set_env: SetEnv, tmp_path: Path) -> None:
    hosts = tmp_path / "ranks"
    hosts.write_text("\n".join(["launch", *[socket.gethostname()] * 2]))
    set_env(JSRUN | {"LSB_DJOB_RANKFILE": str(hosts)})
    assert type(_environment(devices=2)).__name__ == "LSFEnvironment"
    with pytest.raises(MisconfigurationException, match=r"jsrun has started 2 .* train alone"):
        _fit(devices=1)


@pytest.mark.parametrize("name", ["MASTER_ADDR", "MASTER_PORT"])
def test_mpiexec_on_several_nodes_needs_a_meeting_point(name: str, set_env: SetEnv) -> None:
    set_env(MPIEXEC | {"PMI_SIZE": "4", "MASTER_ADDR": "host", "MASTER_PORT": "1"})
    del os.environ[name]
    found = cluster.HydraEnvironment()
    with pytest.raises(MisconfigurationException, match=f"{name} does not .*-genv {name}=<"):
        _ = found.main_address, found.main_port


@pytest.mark.parametrize(
    ("devices", "num_nodes", "world_size", "rank", "kind", "local_rank", "node_rank", "nodes"),
    [
        (1, 1, 2, 1, cluster.RankEnvironment, 0, 1, 2),  # a card a pod; nothing is passed
        (1, 2, 2, 1, cluster.RankEnvironment, 0, 1, 2),
        (2, 1, 2, 1, cluster.RankEnvironment, 1, 0, 1),
        (2, 2, 4, 3, cluster.RankEnvironment, 1, 1, 2),
        (2, 2, 2, 1, cluster.NodeEnvironment, 0, 1, 2),  # each pod starts its other rank
    ],
)
def test_a_rank_and_a_world_size_are_followed(
    devices: int,
    num_nodes: int,
    world_size: int,
    rank: int,
    kind: type,
    local_rank: int,
    node_rank: int,
    nodes: int,
    set_env: SetEnv,
) -> None:
    """As a PyTorchJob sets them, and Dask."""
    set_env(PODS | {"WORLD_SIZE": str(world_size), "RANK": str(rank)})
    trainer = pl.Trainer(accelerator="hpu", devices=devices, num_nodes=num_nodes, logger=False)
    found = trainer.strategy.cluster_environment
    assert type(found) is kind
    assert (found.local_rank(), found.node_rank()) == (local_rank, node_rank)
    assert trainer.num_nodes == nodes
    assert trainer.strategy.distributed_sampler_kwargs["num_replicas"] == devices * nodes


@pytest.mark.parametrize(
    ("variables", "devices", "message"),
    [
        (PODS | {"WORLD_SIZE": "3"}, 2, r"WORLD_SIZE=3.*Pass num_nodes=3 if each .* devices=1 if"),
        (
            {"WORLD_SIZE": "2"},
            1,
            r"WORLD_SIZE=2 says .* but RANK is not set, .*, or unset WORLD_SIZE",
        ),
        ({"PMI_SIZE": "2"}, 1, r"PMI_SIZE=2 says .* but PMI_RANK and MPI_LOCALRANKID are not"),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, 1, "LOCAL_RANK is not set"),
        (PODS | {"MASTER_PORT": ""}, 1, "MASTER_PORT"),
        (
            {"WORLD_SIZE": "2", "RANK": "0"},
            1,
            r"MASTER_ADDR and MASTER_PORT are not set, .* Set MASTER_ADDR to the host of rank 0",
        ),
    ],
)
def test_what_a_launcher_leaves_out_is_named(
    variables: dict[str, str], devices: int, message: str, set_env: SetEnv
) -> None:
    set_env(variables)
    with pytest.raises((MisconfigurationException, ValueError), match=message):
        _fit(devices=devices)


@pytest.mark.parametrize(
    "variables",
    [TORCHRUN | {"RANK": "2"}, MPIEXEC | {"MPI_LOCALRANKID": "7"}, PODS | {"RANK": "2"}],
)
def test_a_rank_beyond_the_last_is_refused(variables: dict[str, str], set_env: SetEnv) -> None:
    set_env(variables)
    with pytest.raises(ValueError, match=r"=\d is none of the 2 processes that"):
        _fit(devices=2)


LIKE_ANOTHER = (("torchrun", "LOCAL_RANK"), ("ray", "RANK"), ("ray", "LOCAL_RANK"))
WRONG = [
    pytest.param(name, variable, value, id=f"{name}-{variable}={value}")
    for name, launcher in zip(SETS, LAUNCHERS, strict=True)
    for variable in (launcher.size, launcher.rank, launcher.local_rank, launcher.local_size)
    for value in ("x", "-1", "1.5", "2", "0", "", None)
    if variable
    # That there are two, or that this is the first of them, is right.
    if value != ("2" if variable in (launcher.size, launcher.local_size) else "0")
    # A number that is not there speaks of nobody, and that of a server's processes may be left out.
    if value or variable not in (launcher.size, launcher.local_size)
    # Which of two processes has this local rank its cards say: see the tests of those.
    if (variable, value) not in (("LOCAL_RANK", "2"), ("JSM_NAMESPACE_LOCAL_RANK", "2"))
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "variable", "value"), WRONG)
def test_what_a_launcher_says_wrong_is_named(
    name: str, variable: str, value: str | None, set_env: SetEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each variable of each launcher."""
    set_env(SETS[name])
    if value is None:
        monkeypatch.delenv(variable)
    else:
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(_SubprocessScriptLauncher, "_call_children_scripts", _refuse)
    is_left_out = not value and name in ("ray", "pods")  # then Lightning starts the ranks
    # Without a local rank it is as a pod of a card; without a rank as Lightning's own.
    is_like_another = value is None and (name, variable) in LIKE_ANOTHER
    named = "WORLD_SIZE=2" if is_like_another else variable
    with pytest.raises((MisconfigurationException, ValueError), match=named):
        _fit(devices=1 if is_left_out else 2)


def _refuse(launcher: Any) -> None:
    raise AssertionError("ranks are started")


@pytest.mark.parametrize("missing", ["", "SLURM_PROCID"])
def test_tasks_that_srun_has_not_started_are_not_waited_for(missing: str, set_env: SetEnv) -> None:
    """As in a script of sbatch, and in a shell of salloc."""
    job = SRUN | {"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "train"}
    set_env({name: value for name, value in job.items() if name != missing})
    with pytest.raises(MisconfigurationException, match=r"SLURM_NTASKS=2.*Start it by `srun"):
        _fit(devices=2)
    # One process of torchrun's is no task that waits for others.
    set_env(TORCHRUN | {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"})
    assert cluster.find_environment(1, 1) is None


@pytest.mark.parametrize("variables", [TORCHRUN, SRUN, MPIRUN, MPIEXEC], ids=lambda each: min(each))
@pytest.mark.parametrize("devices", ["auto", 1, 2])
def test_processes_that_see_one_card_each_drive_it(
    variables: dict[str, str], devices: Any, set_env: SetEnv
) -> None:
    """As Ray, `srun --gpus-per-task=1` and scripts behind mpirun start them."""
    ranks = {"RANK", "LOCAL_RANK", *(name for name in variables if name.endswith("RANK"))}
    ranks |= {"SLURM_PROCID", "SLURM_LOCALID", "MPI_LOCALRANKID"} & variables.keys()
    second = dict.fromkeys(ranks & variables.keys() - {"GROUP_RANK"}, "1")
    set_env(variables | second | {"HABANA_VISIBLE_MODULES": "5"})
    trainer = pl.Trainer(accelerator="hpu", devices=devices, logger=False)
    strategy: Any = trainer.strategy
    assert strategy.distributed_sampler_kwargs["num_replicas"] == 2
    assert (trainer.global_rank, trainer.local_rank, trainer.world_size) == (1, 1, 2)
    cluster.check_world_size(
        strategy.cluster_environment, strategy.num_processes, strategy.num_nodes
    )
    select_card(strategy.parallel_devices, strategy.local_rank)
    assert os.environ["HLS_MODULE_ID"] == "5"


def test_a_child_with_another_card_drives_that(set_env: SetEnv) -> None:
    """As of a program that trains, and starts others on the other cards."""
    set_env({"HABANA_VISIBLE_MODULES": "5"})
    hpu_trainer(devices=1).strategy.setup_environment()
    assert os.environ["HLS_MODULE_ID"] == "5"
    set_env({"HABANA_VISIBLE_MODULES": "6"})
    assert vendor.selected_module() is None
    assert vendor.selected_position() == 0


def test_another_number_than_that_of_the_cards_that_are_seen_is_refused(set_env: SetEnv) -> None:
    set_env(TORCHRUN | {"HABANA_VISIBLE_MODULES": "5"})
    with pytest.raises(MisconfigurationException, match="devices=4 asks for 4 HPUs"):
        _fit(devices=4)


def test_the_document_has_a_row_of_each_launcher() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "launchers.md"
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    for each in LAUNCHERS:
        (row,) = [row for row in rows if row.startswith(f"| {each.users} |")]
        names = (each.size, each.rank, each.local_rank, each.local_size, *each.signs)
        assert all(f"`{name}`" in row for name in names if name)


def test_one_mpi_process_launches_as_without_mpi(set_env: SetEnv) -> None:
    set_env(MPIRUN | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"})
    assert cluster.find_environment(1, 1) is None


def test_torchrun_under_mpirun_is_torchruns(set_env: SetEnv) -> None:
    set_env(MPIRUN | TORCHRUN)
    assert cluster.find_environment(2, 1) is None


def test_where_open_mpis_ranks_meet(set_env: SetEnv) -> None:
    set_env(MPIRUN | {"PMIX_NAMESPACE": "prterun-host-1@1"})
    environment = OpenMPIEnvironment()
    assert environment.main_address == "127.0.0.1"
    port = environment.main_port
    assert 15000 <= port < 25000
    set_env({"PMIX_NAMESPACE": "prterun-host-2@1"})
    assert 15000 <= environment.main_port < 25000
    assert environment.main_port != port
    set_env({"MASTER_ADDR": "host", "MASTER_PORT": "1234"})
    assert (environment.main_address, environment.main_port) == ("host", 1234)


def test_open_mpi_on_several_nodes_needs_an_address(set_env: SetEnv) -> None:
    set_env(MPIRUN | {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"})
    environment = OpenMPIEnvironment()
    assert environment.node_rank() == 1
    with pytest.raises(MisconfigurationException, match=r"4 processes .*-x MASTER_ADDR=<host"):
        _ = environment.main_address


def test_open_mpis_ranks_that_alternate_between_nodes_are_refused(set_env: SetEnv) -> None:
    set_env(MPIRUN | {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"})
    with pytest.raises(MisconfigurationException, match=r"rank 1 the local rank 0 of 2.*by slot"):
        OpenMPIEnvironment()


def test_a_port_in_use_is_named(set_env: SetEnv) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        set_env({"MASTER_PORT": str(port)})
        start = time.monotonic()
        with pytest.raises(MisconfigurationException, match=f"MASTER_PORT={port}.* is in use"):
            _fit(devices=2)
        assert time.monotonic() - start < 3
    cluster.check_port(_of_two_ranks())


def test_a_number_that_is_no_port_is_named(set_env: SetEnv) -> None:
    set_env({"MASTER_PORT": "70000"})
    with pytest.raises(MisconfigurationException, match=r"MASTER_PORT=70000.* be listened on"):
        cluster.check_port(_of_two_ranks())


def _of_two_ranks() -> LightningEnvironment:
    environment = LightningEnvironment()
    environment.set_world_size(2)
    return environment


def test_a_rank_alone_connects_again_where_a_destroyed_group_has_its_port() -> None:
    for _ in range(2):
        _fit(devices=1, strategy="ddp")
        dist.destroy_process_group()


def _several_trainers(rank: int, another_port: int) -> str:
    for _ in range(2):
        _fit(devices=2)
    hpu_trainer(devices=2).test(TinyModule(), batches(2), verbose=False)
    # What has been connected may do something alone.
    hpu_trainer(devices=1).test(TinyModule(), batches(2), verbose=False)
    with pytest.raises(MisconfigurationException) as raised:
        _fit(devices=4)
    dist.destroy_process_group()
    # At the old one, rank 0 may still listen for the old group.
    os.environ["MASTER_PORT"] = str(another_port)
    _fit(devices=2)
    return str(raised.value)


@pytest.mark.slow
def test_one_program_may_have_several_trainers(tmp_path: Path) -> None:
    another_port = free_port()
    for message in run_trainers(_several_trainers, tmp_path, another_port):
        assert "ask for 4 processes, but" in message
        assert "2" in message
