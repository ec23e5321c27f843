"""Finds out which launcher has started this process, as which rank, and with how many others.

Launchers set environment variables, which `LAUNCHERS` lists. The check of the number of processes,
the choice of the card and the connection of the ranks rely on this module.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightning_gaudi.untrusted import read_integer


@dataclass(frozen=True)
class Launcher:
    """A program that starts processes, and the variables that it sets for them."""

    title: str
    """Its name in messages."""
    size: str
    """The variable with the number of all processes."""
    rank: str
    """The variable with the rank of this process."""
    local_rank: str = ""
    """The variable with the local rank; empty if the launcher sets none."""
    local_size: str = ""
    """The variable with the number of processes on this server; empty if it sets none."""
    signs: Sequence[str] = ()
    """Variables by which it is told from launchers that come later in the table."""
    users: str = ""
    """The programs that start processes like this, for the documents."""

    def has_started(self, environ: Mapping[str, str]) -> bool:
        """Returns whether all variables that identify a process are set."""
        needed = (self.rank, self.local_rank, *self.signs)
        return bool(environ.get(self.size)) and all(name in environ for name in needed if name)


# The variables are in the order of the fields: number of processes, rank, local rank, local
# number.
TORCHRUN = Launcher(
    "torchrun",
    *("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    signs=("TORCHELASTIC_RUN_ID",),
    users="torchrun (its options also as `PET_*`), `accelerate launch`, PyTorchJob with "
    "`nprocPerNode`, TrainJob, Spark's TorchDistributor",
)
OPEN_MPI = Launcher(
    "mpirun",
    *("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    users="`mpirun` of Open MPI, MPIJob",
)
HYDRA = Launcher(
    "mpiexec",
    *("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    users="`mpiexec` and `mpirun` of Intel MPI and of MPICH (Hydra)",
)
LSF = Launcher(
    "jsrun",
    *("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK"),
    signs=("LSB_JOBID", "LSB_DJOB_RANKFILE"),
    users="`jsrun` of LSF",
)
SLURM = Launcher(
    "srun",
    *("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
    users="`srun` of SLURM",
)
BY_LOCAL_RANK = Launcher(
    "a launcher",
    *("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    users="Ray Train, DeepSpeed's launcher, your own",
)
BY_RANK = Launcher(
    "a launcher",
    *("WORLD_SIZE", "RANK"),
    users="PyTorchJob with a process a pod, Dask, your own",
)

LAUNCHERS = (TORCHRUN, OPEN_MPI, HYDRA, LSF, SLURM, BY_LOCAL_RANK, BY_RANK)
"""All launchers. If several have set variables, the first in this order started the process.

Within an allocation of SLURM, `mpirun` sees SLURM's variables, and torchrun those of all others.

Source: torch 2.13, `distributed/elastic/agent/server/local_elastic_agent.py`; Open MPI 4.1,
mpirun(1), "Exported Environment Variables"; MPICH 4.0.2, whose `mpiexec` was looked at; Lightning
2.6.6, `fabric/plugins/environments`; Kubeflow training-operator 1.9 (PyTorchJob).
"""


@dataclass(frozen=True)
class Launched:
    """The process as its launcher describes it."""

    launcher: Launcher
    world_size: int
    """All processes, of all servers."""
    rank: int
    """Which of them this is, from 0 on."""
    local_rank: int | None
    """Which of its server's processes this is; None where the launcher does not say."""
    local_size: int | None
    """The number of this server's processes; None where the launcher does not say."""


def find_launched(environ: Mapping[str, str] = os.environ) -> Launched | None:
    """Returns what has started this process and others; None if it is one of its own.

    Raises:
        ValueError: A variable holds something else than its number, or a rank is not below the
            number of ranks.
    """
    for launcher in LAUNCHERS:
        if launcher.has_started(environ):
            found = _read(launcher, environ)
            return found if found.world_size > 1 else None
    return None


def _read(launcher: Launcher, environ: Mapping[str, str]) -> Launched:
    world_size = read_integer(launcher.size, at_least=1, environment=environ)
    rank = read_integer(launcher.rank, environment=environ)
    local_rank, local_size = None, None
    if launcher.local_rank:
        local_rank = read_integer(launcher.local_rank, environment=environ)
    if environ.get(launcher.local_size):
        local_size = read_integer(launcher.local_size, at_least=1, environment=environ)
    for name, number, most in (
        (launcher.rank, rank, (launcher.size, world_size)),
        (launcher.local_rank, local_rank, (launcher.local_size, local_size)),
    ):
        if number is not None and most[1] is not None and number >= most[1]:
            raise ValueError(
                f"{name}={number} is none of the {most[1]} processes that {most[0]} says there "
                f"are: they count from 0 to {most[1] - 1}. Correct the variables, or unset them "
                "where no launcher has set them."
            )
    return Launched(launcher, world_size, rank, local_rank, local_size)


def half_told(
    *, is_alone: bool, environ: Mapping[str, str] = os.environ
) -> tuple[Launcher, str, list[str]] | None:
    """Returns a launcher whose variables tell of several processes but not which this is.

    Args:
        is_alone: Whether one process is asked for. If several are, Lightning starts them, and does
            not look at a WORLD_SIZE that was left in a shell.
        environ: The variables.

    Returns:
        The launcher, the variable that tells of several processes, and those that are missing.
    """
    is_torchrun = all(sign in environ for sign in TORCHRUN.signs)
    if environ.get(BY_LOCAL_RANK.local_rank) and not is_torchrun:
        return None  # one that Lightning has started
    launchers = (*((TORCHRUN,) if is_torchrun else ()), OPEN_MPI, HYDRA, LSF, SLURM)
    for launcher in (*launchers, *((BY_RANK,) if is_alone else ())):
        names = [each for each in (launcher.size, launcher.rank, launcher.local_rank) if each]
        missing = [name for name in names if not environ.get(name)]
        if missing and (told := _speaks_by(launcher, environ, is_alone and missing == names)):
            return launcher, told, missing
    return None


def _speaks_by(launcher: Launcher, environ: Mapping[str, str], is_silent: bool) -> str:
    """Returns the variable by which a launcher tells of several processes; empty if none does.

    Args:
        launcher: Which.
        environ: The variables.
        is_silent: Whether it has set no number, and one process is asked for. A process of torchrun
            may start another one that trains alone.
    """
    if _is_above(1, launcher.size, environ):
        return launcher.size
    first = (
        0 if environ.get(launcher.size) == "" else 1
    )  # beside an empty size, rank 0 is one of several
    if _is_above(first - 1, launcher.rank, environ):
        return launcher.rank
    return launcher.signs[0] if launcher is TORCHRUN and not is_silent else ""


def _is_above(least: int, name: str, environ: Mapping[str, str]) -> bool:
    value = environ.get(name, "")
    # Half of a launcher's variables may hold anything, and this only decides about an error
    # message.
    return value.isdecimal() and len(value) < 10 and int(value) > least


def sees_one_card() -> bool:
    """Returns whether HABANA_VISIBLE_MODULES leaves this process a single card."""
    visible = os.environ.get("HABANA_VISIBLE_MODULES")
    return visible is not None and "," not in visible


def is_pinned() -> bool:
    """Returns whether a launcher has left each of its processes a single visible card.

    Ray does so, `srun --gpus-per-task=1`, and scripts between `mpirun` and a program. The local
    rank does not tell the card then.
    """
    return sees_one_card() and find_launched() is not None


def why_not_listen(port: int) -> str | None:
    """Returns why this process cannot listen at a port of all its interfaces, or None if it can.

    Args:
        port: The number of the port.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
            # As torch's store does: a port with connections in TIME_WAIT counts as free.
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("", port))
            server.listen()
    except (OSError, OverflowError) as error:
        is_used = getattr(error, "errno", None) == errno.EADDRINUSE
        return "is in use by another program" if is_used else f"cannot be listened on ({error})"
    return None
