"""Who has started this process, how many others, which of them it is, and whether it has one card.

Launchers tell by variables of the environment. What is known of each stands in `LAUNCHERS`: the
check of their number, the choice of the card and the meeting of the ranks ask here.
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
    """What starts processes, and the variables by which it tells them."""

    title: str
    """As messages name it."""
    size: str
    """The variable with the number of all processes."""
    rank: str
    """The one with which of them this is."""
    local_rank: str = ""
    """The one with which of its server's processes this is; empty where there is none."""
    local_size: str = ""
    """The one with the number of this server's processes; empty where there is none."""
    signs: Sequence[str] = ()
    """Variables that this one sets and those behind it in the table do not, all of them."""
    users: str = ""
    """Whose programs are started so, for the documents; empty if the title says it."""

    def has_started(self, environ: Mapping[str, str]) -> bool:
        """Returns whether all variables are there by which it tells a process who it is."""
        needed = (self.rank, self.local_rank, *self.signs)
        return bool(environ.get(self.size)) and all(name in environ for name in needed if name)


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
"""Of two that have both set their variables, the one whose processes these are comes first.

Within an allocation of SLURM, `mpirun` sees SLURM's variables, and torchrun those of all others.

Source: torch 2.13, `distributed/elastic/agent/server/local_elastic_agent.py`; Open MPI 4.1,
mpirun(1), "Exported Environment Variables"; MPICH 4.0.2, whose `mpiexec` was looked at; Lightning
2.6.6, `fabric/plugins/environments`; Kubeflow training-operator 1.9 (PyTorchJob).
"""


@dataclass(frozen=True)
class Launched:
    """What a launcher has told this process."""

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
    """Returns a launcher that speaks of several processes, and leaves out what it should say.

    Args:
        is_alone: Whether one process is asked for. Who asks for several lets Lightning start them,
            which does not look at a WORLD_SIZE that somebody has left in a shell.
        environ: The variables.

    Returns:
        The launcher, the variable by which it speaks of them, and those that are not set.
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
    """Returns the variable by which a launcher speaks of several processes; empty if it does not.

    Args:
        launcher: Which.
        environ: The variables.
        is_silent: Whether it has set no number, and one process is asked for: what torchrun has
            started may start something of its own that trains alone.
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
    return value.isdecimal() and len(value) < 10 and int(value) > least


def sees_one_card() -> bool:
    """Returns whether HABANA_VISIBLE_MODULES leaves this process a single card."""
    visible = os.environ.get("HABANA_VISIBLE_MODULES")
    return visible is not None and "," not in visible


def is_pinned() -> bool:
    """Returns whether whoever started this process and others has left it a single card.

    Ray does so, `srun --gpus-per-task=1`, and scripts between `mpirun` and a program. A local rank
    says nothing of the card then.
    """
    return sees_one_card() and find_launched() is not None


def why_not_listen(port: int) -> str | None:
    """Returns why this process cannot listen at a port of all its interfaces, or None if it can.

    Args:
        port: The number of the port.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
            # As torch does: a port whose last connections linger is free.
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("", port))
            server.listen()
    except (OSError, OverflowError) as error:
        is_used = getattr(error, "errno", None) == errno.EADDRINUSE
        return "is in use by another program" if is_used else f"cannot be listened on ({error})"
    return None
