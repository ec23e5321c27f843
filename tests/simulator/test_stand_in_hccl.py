"""habana_frameworks.torch.distributed.hccl: ranks from the environment, and the backend."""

from __future__ import annotations

import os

import pytest
import torch
from habana_frameworks.torch.distributed.hccl import initialize_distributed_hpu
from habana_frameworks.torch.utils import distributed_utils

NAMES = (
    *("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "ID"),
    *("HLS_MODULE_ID", "HABANA_VISIBLE_MODULES"),
    *("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
)


@pytest.fixture
def environ(monkeypatch):
    """An environment without ranks, restored afterwards."""
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that what the code sets is undone
        monkeypatch.delenv(name)
    return monkeypatch


def test_a_single_process_gets_defaults_and_a_master(environ):
    assert initialize_distributed_hpu() == (1, -1, -1)
    assert os.environ["MASTER_ADDR"] == "localhost"
    assert os.environ["MASTER_PORT"] == "12345"
    assert "HLS_MODULE_ID" not in os.environ
    assert "ID" not in os.environ


def test_the_launchers_variables_are_taken_and_select_a_module(environ):
    for name, value in (("WORLD_SIZE", "4"), ("RANK", "3"), ("LOCAL_RANK", "1")):
        environ.setenv(name, value)
    assert initialize_distributed_hpu() == (4, 3, 1)
    assert os.environ["HLS_MODULE_ID"] == "1"
    assert os.environ["ID"] == "3"
    assert "MASTER_PORT" not in os.environ


def test_open_mpis_variables_are_translated(environ):
    for name, value in (("SIZE", "4"), ("RANK", "2"), ("LOCAL_RANK", "0")):
        environ.setenv(f"OMPI_COMM_WORLD_{name}", value)
    assert initialize_distributed_hpu() == (4, 2, 0)
    assert (os.environ["WORLD_SIZE"], os.environ["RANK"], os.environ["LOCAL_RANK"]) == tuple("420")


def test_arguments_override_the_environment(environ):
    environ.setenv("RANK", "7")
    environ.setenv("HABANA_VISIBLE_MODULES", "4,6")
    assert initialize_distributed_hpu(world_size=2, rank=1, local_rank=1) == (2, 1, 1)
    assert os.environ["RANK"] == "1"
    assert os.environ["HLS_MODULE_ID"] == "6"


def test_a_module_already_selected_stays(environ):
    environ.setenv("HLS_MODULE_ID", "5")
    initialize_distributed_hpu(2, 1, 1)
    assert os.environ["HLS_MODULE_ID"] == "5"


def test_a_rank_without_a_card_is_refused(environ):
    environ.setenv("HABANA_VISIBLE_MODULES", "4,6")
    with pytest.raises(AssertionError, match=r"Local rank 2 has no card: .*=4,6 names 2"):
        initialize_distributed_hpu(4, 2, 2)


def test_the_old_address_warns(environ):
    with pytest.warns(FutureWarning, match="moved to habana_frameworks.torch.distributed.hccl"):
        assert distributed_utils.initialize_distributed_hpu() == (1, -1, -1)


def test_a_group_of_one_runs_collectives(tmp_path):
    dist = torch.distributed
    assert dist.Backend.default_device_backend_map["hpu"] == "hccl"
    dist.init_process_group("hccl", init_method=f"file://{tmp_path}/store", world_size=1, rank=0)
    try:
        tensor = torch.ones(2, device="hpu")
        dist.all_reduce(tensor)
        gathered = [None]
        dist.all_gather_object(gathered, {"rank": 0})
        dist.all_reduce(tensor, group=dist.new_group([0]))
        dist.barrier(device_ids=[0])
        assert dist.get_backend() == "hccl"
    finally:
        dist.destroy_process_group()
    assert tensor.tolist() == [1, 1]
    assert gathered == [{"rank": 0}]
