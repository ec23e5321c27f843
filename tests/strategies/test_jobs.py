"""Which job a process is part of, and which starts of it are the same job's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_gaudi.strategies.jobs import Job, find_job

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "abc",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_x/abc_y/attempt_0/1/error.json",
}
SLURM = {"SLURM_JOB_ID": "17", "SLURM_CLUSTER_NAME": "big"}


def _found(environ: dict[str, str]) -> Job:
    job = find_job(environ)
    assert job is not None
    return job


def test_a_process_that_nobody_would_start_again_has_no_job() -> None:
    assert find_job({"RANK": "0", "WORLD_SIZE": "2"}) is None


def test_all_attempts_and_ranks_of_a_torchrun_are_one_job() -> None:
    first = _found(TORCHRUN)
    assert (first.scheduler, first.name, first.num_restarts) == ("torchrun", "torchrun-abc", 0)
    assert first.agent.endswith(":/tmp/torchelastic_x/abc_y")
    again = TORCHRUN | {
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_x/abc_y/attempt_2/0/error.json",
    }
    assert _found(again) == replace(first, num_restarts=2)


def test_a_requeued_job_of_slurm_is_the_same_and_each_task_of_an_array_is_another() -> None:
    first = _found(SLURM)
    assert (first.scheduler, first.name, first.num_restarts) == ("SLURM", "slurm-big-17", 0)
    assert _found(SLURM | {"SLURM_RESTART_COUNT": "1"}) == replace(first, num_restarts=1)
    assert _found(SLURM | {"SLURM_JOB_ID": "18"}).name != first.name


def test_torchrun_within_slurm_is_slurms_job_whichever_starts_it_again() -> None:
    both = SLURM | TORCHRUN
    assert _found(both).name == "slurm-big-17"
    assert _found(both | {"TORCHELASTIC_RESTART_COUNT": "1"}).scheduler == "torchrun"
    requeued = both | {"SLURM_RESTART_COUNT": "1", "TORCHELASTIC_RUN_ID": "another"}
    assert _found(requeued).is_restart_of(_found(both).agent, is_restarted=True)


def test_the_same_torchrun_is_known_though_its_node_has_counted_no_restart() -> None:
    job = _found(TORCHRUN)
    assert job.is_restart_of(job.agent, is_restarted=False, has_ended=True)
    assert not job.is_restart_of("other:/tmp/z", is_restarted=False, has_ended=True)
    assert job.is_restart_of("other:/tmp/z", is_restarted=True, has_ended=True)


def test_a_rendezvous_id_of_its_own_is_the_job_until_its_fit_has_ended() -> None:
    """As where a pod is made anew, and torchrun in it with a count of no restarts."""
    job = _found(TORCHRUN)
    assert job.is_restart_of("other:/tmp/z", is_restarted=False)
    drawn = _found(TORCHRUN | {"TORCHELASTIC_RUN_ID": "6ea0a2d4-96ad-4f05-b6bc-d3a5b8b0a5f7"})
    assert not drawn.is_restart_of("other:/tmp/z", is_restarted=False)


@pytest.mark.parametrize("environ", [{}, TORCHRUN, SLURM, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}])
def test_a_job_that_its_user_has_named_is_that_job(environ: dict[str, str]) -> None:
    job = _found(environ | {"LIGHTNING_GAUDI_JOB_ID": "bert-17"})
    assert job.name == "job-bert-17"
    assert job.is_restart_of("other:/tmp/z", is_restarted=False, has_ended=True)


def test_a_pod_does_not_know_its_job() -> None:
    job = _found({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert not job.is_restart_of("", is_restarted=False)


def test_a_name_that_every_torchrun_has_says_nothing() -> None:
    job = _found(TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"})
    assert job.is_restart_of(job.agent, is_restarted=True)
    assert not job.is_restart_of("other:/tmp/z", is_restarted=True)
    nameless = replace(job, agent="")
    assert not nameless.is_restart_of("", is_restarted=True)
