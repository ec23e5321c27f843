"""The run that this process is part of, and the job of torchrun or SLURM, which may start again."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lightning_gaudi.untrusted import read_integer

_num_fits: Counter[str] = Counter()
"""How often each model's class has been fitted in this process."""


@dataclass(frozen=True)
class Job:
    """What stays the same when torchrun or SLURM starts its processes again."""

    scheduler: str
    """`"torchrun"` or `"SLURM"`: who starts them."""
    name: str
    """What the scheduler calls it."""
    is_unique: bool
    """Whether no other job of the scheduler has the name."""
    agent: str = ""
    """The torchrun of this node, which no other has; empty where it is not known."""
    num_restarts: int = 0
    """How often it has started this process before; on another node it may be another number."""

    def is_restart_of(self, agent: str, *, is_restarted: bool) -> bool:
        """Returns whether this is a further start of what had the same name.

        Args:
            agent: Of the start before.
            is_restarted: Whether a rank of this start was started before.
        """
        # A node that another took the place of has counted no restart.
        return bool(self.agent and agent == self.agent) or (self.is_unique and is_restarted)


def find_job(environ: Mapping[str, str] = os.environ) -> Job | None:
    """Returns the job that this process is part of; None if nobody would start it again.

    Within a job of SLURM torchrun is part of it: when SLURM starts that again, torchrun is new.

    Source: torch 2.13, `distributed/elastic/agent/server/local_elastic_agent.py` (variables of a
    worker), `distributed/run.py` (`--rdzv-id`, by default "none" for all), `multiprocessing/api.py`
    (`DefaultLogsSpecs`: a folder for each agent, below it one for each attempt); SLURM 22.05,
    sbatch(1), output environment variables.
    """
    number, run = environ.get("SLURM_JOB_ID"), environ.get("TORCHELASTIC_RUN_ID")
    agent = _agent(environ) if run is not None else ""
    restarts = read_integer("TORCHELASTIC_RESTART_COUNT", 0, environment=environ)
    if number is not None:
        name = "-".join(filter(None, (environ.get("SLURM_CLUSTER_NAME"), number)))
        requeues = read_integer("SLURM_RESTART_COUNT", 0, environment=environ)
        scheduler = "torchrun" if restarts else "SLURM"
        return Job(scheduler, f"slurm-{name}", True, agent, restarts + requeues)
    if run is not None:
        return Job("torchrun", f"torchrun-{run}", run != "none", agent, restarts)
    return None


def count_fit(model: str) -> int:
    """Returns how many fits of this process came before this one.

    Args:
        model: The name of the model's class, which has a count of its own.
    """
    _num_fits[model] += 1
    return _num_fits[model] - 1


def _agent(environ: Mapping[str, str]) -> str:
    path = environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or len(Path(path).parents) < 3:
        return ""
    return f"{socket.gethostname()}:{Path(path).parents[2]}"


class Session(NamedTuple):
    """A fit. One that resumes has the name of the run that it goes on with, and begins later."""

    run: str
    began: float
    """In seconds since 1970."""


_current: Session | None = None


def begin_session() -> None:
    """Notes that a fit begins, of a new run as far as is known yet."""
    global _current
    _current = Session(uuid.uuid4().hex, time.time())


def continue_run(run: str) -> None:
    """Notes that the fit goes on with an earlier run."""
    global _current
    _current = current_session()._replace(run=run)


def current_session() -> Session:
    """Returns the fit that this process is in; one begins if there is none."""
    if _current is None:
        begin_session()
    assert _current is not None
    return _current
