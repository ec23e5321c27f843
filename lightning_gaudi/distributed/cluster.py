"""Who has started this process, how many others, and where they meet.

Lightning asks a `ClusterEnvironment`. Here are the one that it lacks, for Open MPI, and what an HPU
needs checked before processes wait for one another: a wrong number of them would wait for ever, or
each train alone.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping

from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.mpi import MPIEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from typing_extensions import override

from lightning_gaudi._core.ports import why_not_listen
from lightning_gaudi.untrusted import read_integer

from .elastic_rendezvous import uses_agent_store

_SIZE, _RANK = "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"
_LOCAL_SIZE, _LOCAL_RANK = "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"


class OpenMPIEnvironment(ClusterEnvironment):
    """Processes that `mpirun` of Open MPI has started, as their environment variables tell.

    Lightning's `MPIEnvironment` needs mpi4py; this one needs nothing. The ranks of a node must
    follow one another, as `mpirun --map-by slot` (the default) places them.

    They meet at MASTER_ADDR and MASTER_PORT. Where all are on one node, neither is needed; on
    several nodes MASTER_ADDR is: `mpirun -x MASTER_ADDR=<host of rank 0>`.
    """

    def __init__(self) -> None:
        """Reads the variables.

        Raises:
            MisconfigurationException: The ranks of a node do not follow one another.
        """
        super().__init__()
        if self.global_rank() % self._local_size() != self.local_rank():
            raise MisconfigurationException(
                f"mpirun has made rank {self.global_rank()} the local rank {self.local_rank()} of "
                f"{self._local_size()}, but the ranks of a node must follow one another. Start as "
                "many on each node, with `mpirun --map-by slot --rank-by slot`."
            )

    @staticmethod
    @override
    def detect() -> bool:
        """Returns whether `mpirun` has started this process and others."""
        names = (_SIZE, _RANK, _LOCAL_SIZE, _LOCAL_RANK)
        return all(name in os.environ for name in names) and read_integer(_SIZE, at_least=1) > 1

    @property
    @override
    def creates_processes_externally(self) -> bool:
        """True: `mpirun` does."""
        return True

    @property
    @override
    def main_address(self) -> str:
        """MASTER_ADDR, or this host if all ranks are on it.

        Raises:
            MisconfigurationException: It is not set, and there are several nodes.
        """
        address = os.environ.get("MASTER_ADDR")
        if address is None and self._local_size() < self.world_size():
            raise MisconfigurationException(
                f"mpirun has started {self.world_size()} processes on several nodes, and "
                "MASTER_ADDR does not say where rank 0 is. Pass "
                "`-x MASTER_ADDR=<host of rank 0>` to mpirun."
            )
        return address or "127.0.0.1"

    @property
    @override
    def main_port(self) -> int:
        """MASTER_PORT, or one that follows from the job's name."""
        # Set by Open MPI for every process, the same for all of a job.
        job = os.environ.get("PMIX_NAMESPACE", "")
        return read_integer(
            "MASTER_PORT",
            15000 + zlib.crc32(job.encode(errors="surrogateescape")) % 10000,
            at_least=1,
        )

    @override
    def world_size(self) -> int:
        """Returns all processes of this `mpirun`."""
        return read_integer(_SIZE, at_least=1)

    @override
    def set_world_size(self, size: int) -> None:
        """Nothing: `mpirun` decided."""

    @override
    def global_rank(self) -> int:
        """Returns which of all processes this is."""
        return read_integer(_RANK)

    @override
    def set_global_rank(self, rank: int) -> None:
        """Nothing: `mpirun` decided."""

    @override
    def local_rank(self) -> int:
        """Returns which of its node's processes this is."""
        return read_integer(_LOCAL_RANK)

    @override
    def node_rank(self) -> int:
        """Returns which of all nodes this is."""
        return self.global_rank() // self._local_size()

    def _local_size(self) -> int:
        return read_integer(_LOCAL_SIZE, at_least=1)


_LAUNCHERS: Mapping[type[ClusterEnvironment], tuple[str, str]] = {
    TorchElasticEnvironment: ("torchrun", "WORLD_SIZE"),
    SLURMEnvironment: ("srun", "SLURM_NTASKS"),
    OpenMPIEnvironment: ("mpirun", _SIZE),
    LightningEnvironment: ("a launcher", "WORLD_SIZE"),
}
"""What starts processes, and the variable that tells how many there are."""


def mpi_environment() -> ClusterEnvironment | None:
    """Returns what Open MPI has started, or None if that is not what started this process.

    Within an allocation of SLURM `mpirun` sees SLURM's variables, but it has numbered the ranks.
    """
    if TorchElasticEnvironment.detect() or not OpenMPIEnvironment.detect():
        return None
    return MPIEnvironment() if MPIEnvironment.detect() else OpenMPIEnvironment()


def _started(environment: ClusterEnvironment) -> tuple[str, str, int] | None:
    """Returns who started how many processes, where that is known: launcher, variable, number."""
    if not environment.creates_processes_externally:
        return None
    launcher, name = _LAUNCHERS.get(type(environment), ("", ""))
    value = os.environ.get(name)
    return None if value is None else (launcher, name, read_integer(name))


def check_world_size(environment: ClusterEnvironment, num_devices: int, num_nodes: int) -> None:
    """Refuses to wait for processes that nobody has started, or to leave some out.

    Args:
        environment: Tells what has been started.
        num_devices: Ranks of a node.
        num_nodes: Nodes.

    Raises:
        MisconfigurationException: It is another number.
    """
    wanted = num_devices * num_nodes
    asked = f"devices={num_devices} and num_nodes={num_nodes} ask for {wanted} processes"
    started = _started(environment)
    if started is not None and started[2] != wanted:
        launcher, name, count = started
        raise MisconfigurationException(
            f"{asked}, but {launcher} has started {count} ({name}={count}). Pass the devices of a "
            "node and the nodes that it was told to start."
        )
    local = _local_world_size(environment)
    if local is not None and local != num_devices:
        raise MisconfigurationException(
            f"devices={num_devices}, but {local} processes have been started on this node. Pass "
            f"devices={local}, the same to all Trainers of a program, or start as many."
        )
    if num_nodes > 1 and isinstance(environment, LightningEnvironment):
        _check_meeting_point(num_devices, num_nodes)


def _local_world_size(environment: ClusterEnvironment) -> int | None:
    if isinstance(environment, OpenMPIEnvironment):
        return environment._local_size()
    is_told = isinstance(environment, (LightningEnvironment, TorchElasticEnvironment))
    if not is_told or not environment.creates_processes_externally:
        return None
    value = os.environ.get("LOCAL_WORLD_SIZE")
    return None if value is None else read_integer("LOCAL_WORLD_SIZE")


def _check_meeting_point(num_devices: int, num_nodes: int) -> None:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    verb = "is" if len(missing) == 1 else "are"
    if missing:
        raise MisconfigurationException(
            f"num_nodes={num_nodes}, but {' and '.join(missing)} {verb} not set, so the nodes "
            f"cannot find one another. Start on each node `torchrun --nnodes={num_nodes} "
            f"--nproc-per-node={num_devices} --node-rank=... --rdzv-backend=c10d "
            "--rdzv-endpoint=<host of node 0>:<port> train.py`, use srun or mpirun, or set "
            "MASTER_ADDR, MASTER_PORT and NODE_RANK on each node."
        )


def check_not_alone(environment: ClusterEnvironment | None) -> None:
    """Refuses to train alone in each of several processes that were started as one job.

    Args:
        environment: Tells what has been started; None if nobody looked.

    Raises:
        MisconfigurationException: There are several.
    """
    started = None if environment is None else _started(environment)
    if started is not None and started[2] > 1:
        launcher, name, count = started
        is_own = isinstance(environment, (SLURMEnvironment, OpenMPIEnvironment))
        own = ", or plugins=[LightningEnvironment()] if each is to train a model of its own"
        raise MisconfigurationException(
            f"devices=1 and num_nodes=1 train in one process, but {launcher} has started {count} "
            f"({name}={count}), and each would train alone. Pass devices and num_nodes that make "
            f"{count}, start one process{own if is_own else ''}."
        )


def check_port(environment: ClusterEnvironment) -> None:
    """Makes sure that rank 0, this process, can listen where the others will look for it.

    Raises:
        MisconfigurationException: Another program listens there, or nobody may.
    """
    if uses_agent_store() or environment.world_size() == 1:
        return  # torchrun listens, or nobody is to come
    port = environment.main_port
    if reason := why_not_listen(port):
        raise MisconfigurationException(
            f"MASTER_PORT={port}, where rank 0 would wait for the others, {reason}. Set "
            "MASTER_PORT to a free port; where Lightning starts the processes of one node, it "
            "finds one if you unset it. Groups that this program has destroyed keep their port "
            "until it ends, too."
        )
