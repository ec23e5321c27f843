"""Environments for launchers that Lightning does not know, and checks of what was started.

With a wrong number of processes all would wait for ever, or each would train alone.
`_core.launched` finds out what has started this one.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path

from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.plugins.environments.kubeflow import KubeflowEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.lsf import LSFEnvironment
from lightning.fabric.plugins.environments.mpi import MPIEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from typing_extensions import override

from lightning_gaudi._core import launched, vendor
from lightning_gaudi._core.launched import Launcher, find_launched, why_not_listen
from lightning_gaudi.untrusted import read_integer

from .elastic_rendezvous import uses_agent_store

_PROXIES = ("hydra_pmi_prox", "hydra_bstrap_pr")
"""Processes by which Hydra starts a node's ranks; Linux cuts names off after 15 characters."""


class LauncherEnvironment(ClusterEnvironment):
    """Processes that a launcher has started, described by environment variables.

    The ranks of a node must follow one another. The ranks meet at MASTER_ADDR and MASTER_PORT,
    neither of which is needed on a single node.
    """

    launcher: Launcher
    command = ""
    """The launcher's option that passes a variable to its ranks; `{}` stands for the variable."""

    def __init__(self) -> None:
        """Reads the variables.

        Raises:
            MisconfigurationException: The ranks of a node do not follow one another.
        """
        super().__init__()
        if self.global_rank() % self._local_size() != self.local_rank():
            raise MisconfigurationException(
                f"{self.launcher.title} has made rank {self.global_rank()} the local rank "
                f"{self.local_rank()} of {self._local_size()}, but the ranks of a node must follow "
                "one another. Start as many on each node, the ranks in the order of the nodes "
                "(Open MPI: `mpirun --map-by slot --rank-by slot`; Intel MPI and MPICH: "
                "`mpiexec -ppn <devices>`)."
            )

    @classmethod
    @override
    def detect(cls) -> bool:
        """Returns whether the launcher has started this process and others."""
        found = cls.launcher.has_started(os.environ)
        return found and read_integer(cls.launcher.size, at_least=1) > 1

    @property
    @override
    def creates_processes_externally(self) -> bool:
        """Returns True, since the launcher does."""
        return True

    @property
    @override
    def main_address(self) -> str:
        """MASTER_ADDR, or this host if all ranks are on it.

        Raises:
            MisconfigurationException: It is not set, and there are several nodes.
        """
        return os.environ.get("MASTER_ADDR") or self._on_this_node("MASTER_ADDR", "127.0.0.1")

    @property
    @override
    def main_port(self) -> int:
        """MASTER_PORT, or one that follows from the job's name."""
        # All ranks must compute the same number without speaking to one another, and two jobs of a
        # machine should get different ones. CRC32 does not depend on the process, as Python's
        # `hash` does.
        port = 15000 + zlib.crc32(self._job().encode(errors="surrogateescape")) % 10000
        return read_integer("MASTER_PORT", port, at_least=1)

    def _job(self) -> str:
        """Returns a name that all ranks of this job share, and no other job has."""
        raise NotImplementedError

    def _on_this_node(self, name: str, value: str) -> str:
        """Returns a value that is valid if all ranks are on this node.

        Raises:
            MisconfigurationException: They are not.
        """
        if self._local_size() < self.world_size():
            what = {"MASTER_ADDR": "host of rank 0", "MASTER_PORT": "a free port of that host"}
            raise MisconfigurationException(
                f"{self.launcher.title} has started {self.world_size()} processes on several "
                f"nodes, and {name} does not say where rank 0 is. Pass "
                f"`{self.command.format(f'{name}=<{what[name]}>')}` to {self.launcher.title}."
            )
        return value

    @override
    def world_size(self) -> int:
        """Returns the number of all processes."""
        return read_integer(self.launcher.size, at_least=1)

    @override
    def set_world_size(self, size: int) -> None:
        """Does nothing: the launcher decided."""

    @override
    def global_rank(self) -> int:
        """Returns which of all processes this is."""
        return read_integer(self.launcher.rank)

    @override
    def set_global_rank(self, rank: int) -> None:
        """Does nothing: the launcher decided."""

    @override
    def local_rank(self) -> int:
        """Returns which of its node's processes this is."""
        return read_integer(self.launcher.local_rank)

    @override
    def node_rank(self) -> int:
        """Returns which of all nodes this is."""
        return self.global_rank() // self._local_size()

    def _local_size(self) -> int:
        return read_integer(self.launcher.local_size, at_least=1)


class OpenMPIEnvironment(LauncherEnvironment):
    """Processes that `mpirun` of Open MPI has started; nothing is asked of mpi4py.

    On several nodes it needs MASTER_ADDR: `mpirun -x MASTER_ADDR=<host of rank 0>`.
    """

    launcher = launched.OPEN_MPI
    command = "-x {}"

    @override
    def _job(self) -> str:
        return os.environ.get("PMIX_NAMESPACE", "")


class HydraEnvironment(LauncherEnvironment):
    """Processes that `mpiexec` of Intel MPI or MPICH has started.

    On several nodes it needs MASTER_ADDR and MASTER_PORT: a job has no name there that its ranks
    would know.
    """

    launcher = launched.HYDRA
    command = "-genv {}"

    @override
    def _job(self) -> str:
        return self._on_this_node("MASTER_PORT", str(_ancestor(_PROXIES)))

    @override
    def _local_size(self) -> int:
        return read_integer(self.launcher.local_size, self.world_size(), at_least=1)


class RankEnvironment(LauncherEnvironment):
    """Processes that know only RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    Dask starts such processes, and a Kubeflow PyTorchJob with one in each pod.

    Args:
        num_devices: How many of them a node has; their ranks follow one another.
    """

    launcher = launched.BY_RANK

    def __init__(self, num_devices: int) -> None:
        """Notes the number, and looks for where they meet.

        Raises:
            MisconfigurationException: The variables do not say where rank 0 is.
        """
        self._num_devices = num_devices
        super().__init__()
        check_meeting_point(
            f"{self.launcher.size}={self.world_size()}",
            "Set MASTER_ADDR to the host of rank 0, and MASTER_PORT to a free port of it.",
        )

    @property
    @override
    def main_port(self) -> int:
        """MASTER_PORT."""
        return read_integer("MASTER_PORT", at_least=1)

    @override
    def local_rank(self) -> int:
        """Returns which of its node's processes this is."""
        return self.global_rank() % self._num_devices

    @override
    def _local_size(self) -> int:
        return self._num_devices


class NodeEnvironment(LightningEnvironment):
    """Processes that start the other ranks of their node; RANK is that of the node.

    A Kubeflow PyTorchJob starts such processes if each pod has several cards.
    """

    @override
    def node_rank(self) -> int:
        """Returns NODE_RANK, which Lightning sets for the ranks that it starts, or RANK."""
        return read_integer("NODE_RANK", read_integer("RANK"))


def _ancestor(names: tuple[str, ...]) -> int:
    """Returns the id of the nearest ancestor with one of these names, or else of the parent."""
    pid = os.getppid()
    while pid > 1:
        try:
            # "12 (name) S 11 ...": a name may hold parentheses itself, so the last one counts.
            before, _, after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        except OSError:
            break
        if before.partition("(")[2] in names:
            return pid
        pid = int(after.split()[1])
    return os.getppid()


_OF_LIGHTNING: Mapping[Launcher, type[ClusterEnvironment]] = {
    launched.TORCHRUN: TorchElasticEnvironment,
    launched.LSF: LSFEnvironment,
    launched.SLURM: SLURMEnvironment,
}
"""The launchers that Lightning's connectors find, and the environments that they make."""


def find_environment(num_devices: int, num_nodes: int) -> ClusterEnvironment | None:
    """Returns the environment of a launcher that Lightning does not find; else None.

    Args:
        num_devices: The ranks of a node that the Trainer or Fabric asks for.
        num_nodes: The nodes.

    Raises:
        MisconfigurationException: Variables say that there are several processes, and not which of
            them this is.
        ValueError: One holds something else than its number.
    """
    found = find_launched()
    if found is None:
        if not any(each.has_started(os.environ) for each in launched.LAUNCHERS):
            _refuse_without_srun()
            _refuse_half(num_devices * num_nodes)
        return None
    # Lightning's environment asks mpi4py, and so wins where that is installed.
    if found.launcher is launched.OPEN_MPI:
        return MPIEnvironment() if MPIEnvironment.detect() else OpenMPIEnvironment()
    if found.launcher is launched.HYDRA:
        return MPIEnvironment() if MPIEnvironment.detect() else HydraEnvironment()
    if found.launcher is launched.SLURM:
        _refuse_without_srun()
    if found.launcher is launched.BY_RANK:
        is_of_nodes = num_devices > 1 and found.world_size == num_nodes
        return NodeEnvironment() if is_of_nodes else RankEnvironment(num_devices)
    return None


def _refuse_half(num_asked: int) -> None:
    """Refuses to train if a launcher tells of several processes but not which of them this is."""
    half = None if _is_interactive() else launched.half_told(is_alone=num_asked == 1)
    if half is not None:
        launcher, told, missing = half
        are_missing = "is not set" if len(missing) == 1 else "are not set"
        raise MisconfigurationException(
            f"{told}={os.environ[told]} says that {launcher.title} has started several processes, "
            f"but {' and '.join(missing)} {are_missing}, so this process does not know which of "
            f"them it is, and each would train alone. Set what is missing, or unset {told}."
        )


def _is_interactive() -> bool:
    """Returns whether Lightning takes a SLURM job for an interactive shell and starts the ranks."""
    return os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")


def _refuse_without_srun() -> None:
    """Refuses to wait for tasks that nobody starts, in a script of sbatch or a shell of salloc."""
    if "SLURM_JOB_ID" not in os.environ or "SLURM_STEP_ID" in os.environ or _is_interactive():
        return
    size = launched.SLURM.size
    if (count := read_integer(size, 1)) > 1:
        raise MisconfigurationException(
            f"This job of SLURM is for {count} tasks ({size}={count}), but srun has not started "
            "this process (SLURM_STEP_ID is not set), and nobody would start the others. Start it "
            "by `srun python ...`, or pass plugins=[LightningEnvironment()] for Lightning to start "
            "the ranks of this node."
        )


def find_num_nodes(environment: ClusterEnvironment, num_devices: int, num_nodes: int) -> int:
    """Returns the number of nodes of a run, where each process with a single card counts as one.

    Users of Ray, and of PyTorchJob with a card in each pod, leave `devices` and `num_nodes` at
    their defaults.

    Args:
        environment: Tells what has been started.
        num_devices: The cards that the Trainer or Fabric asks for.
        num_nodes: The nodes that it asks for.
    """
    found = started(environment)
    if found is None or num_devices > 1 or num_nodes > 1:
        return num_nodes
    is_alone = isinstance(environment, (RankEnvironment, KubeflowEnvironment))
    return found[2] if is_alone or launched.is_pinned() else num_nodes


def started(environment: ClusterEnvironment) -> tuple[str, str, int] | None:
    """Returns launcher, variable and number of the started processes; None if it is not known."""
    if not environment.creates_processes_externally:
        return None
    launcher = _launcher_of(environment)
    # An environment that we do not know, such as Ray's: its own answer counts.
    if launcher is None:
        name = "WORLD_SIZE" if "WORLD_SIZE" in os.environ else "world_size()"
        count = environment.world_size()
        return (type(environment).__name__, name, count) if count > 1 else None
    if launcher.size not in os.environ:
        return None
    return launcher.title, launcher.size, read_integer(launcher.size)


def _launcher_of(environment: ClusterEnvironment) -> Launcher | None:
    if isinstance(environment, LauncherEnvironment):
        return environment.launcher
    if type(environment).world_size is LightningEnvironment.world_size:
        # Lightning's own environment does not know the size before a strategy sets it.
        return launched.BY_LOCAL_RANK
    kinds = ((each, kind) for each, kind in _OF_LIGHTNING.items() if isinstance(environment, kind))
    return next((each for each, _ in kinds), None)


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
    found, local = started(environment), _local_world_size(environment)
    if found is not None and found[2] != wanted:
        launcher, name, count = found
        raise MisconfigurationException(
            f"{asked}, but {launcher} has started {count} ({name}={count}). "
            f"{_instead(environment, count, local, wanted)}"
        )
    is_own_node = num_devices == 1 and launched.is_pinned()
    if local is not None and local != num_devices and not is_own_node:
        raise MisconfigurationException(
            f"devices={num_devices}, but {local} processes have been started on this node. Pass "
            f"devices={local}, the same to all Trainers of a program, or start as many."
        )
    if num_nodes > 1 and isinstance(environment, LightningEnvironment):
        check_meeting_point(
            f"num_nodes={num_nodes}",
            f"Start on each node `torchrun --nnodes={num_nodes} --nproc-per-node={num_devices} "
            "--node-rank=... --rdzv-backend=c10d --rdzv-endpoint=<host of node 0>:<port> train.py`"
            ", use srun or mpirun, or set MASTER_ADDR, MASTER_PORT and NODE_RANK on each node.",
        )


def _instead(environment: ClusterEnvironment, count: int, local: int | None, wanted: int) -> str:
    """Returns advice on what to pass, given how many processes were started and where."""
    # Its variables do not say how many processes are on a node.
    if isinstance(environment, RankEnvironment):
        return (
            f"Pass num_nodes={count} if each is to start the other ranks of its node, devices=1 if "
            f"each is a rank, or start {wanted}."
        )
    if local is None or count % local:
        return "Pass the devices of a node and the nodes that it was told to start."
    num_cards = vendor.num_visible_cards()
    if local > num_cards and not launched.is_pinned():
        return f"Start {wanted}: {num_cards} at most on a node, a process for each of its cards."
    return f"Pass devices={local} and num_nodes={count // local}, or start {wanted}."


def _local_world_size(environment: ClusterEnvironment) -> int | None:
    if isinstance(environment, LauncherEnvironment):
        return environment._local_size()
    is_told = isinstance(environment, (LightningEnvironment, TorchElasticEnvironment))
    if not is_told or not environment.creates_processes_externally:
        return None
    value = os.environ.get("LOCAL_WORLD_SIZE")
    return None if value is None else read_integer("LOCAL_WORLD_SIZE")


def check_meeting_point(asking: str, instead: str) -> None:
    """Refuses to connect to rank 0 if its address is not known.

    Args:
        asking: The setting or variable that makes several nodes.
        instead: What to do.

    Raises:
        MisconfigurationException: MASTER_ADDR or MASTER_PORT is not set.
    """
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    verb = "is" if len(missing) == 1 else "are"
    if missing:
        raise MisconfigurationException(
            f"{asking}, but {' and '.join(missing)} {verb} not set, so the nodes cannot find one "
            f"another. {instead}"
        )


def check_not_alone(environment: ClusterEnvironment | None) -> None:
    """Refuses to train alone in each of several processes that were started as one job.

    Args:
        environment: Tells what has been started; None if nobody looked.

    Raises:
        MisconfigurationException: There are several.
    """
    found = None if environment is None else started(environment)
    if found is not None and found[2] > 1:
        launcher, name, count = found
        is_own = isinstance(environment, (SLURMEnvironment, LauncherEnvironment))
        own = " Where each is to train a model of its own, pass plugins=[LightningEnvironment()]."
        raise MisconfigurationException(
            f"devices=1 and num_nodes=1 train in one process, but {launcher} has started {count} "
            f"({name}={count}), and each would train alone. Pass devices and num_nodes that make "
            f"{count}, or start one process.{own if is_own else ''}"
        )


def check_port(environment: ClusterEnvironment) -> None:
    """Raises if this process, rank 0, cannot listen at the port where the others will connect.

    Raises:
        MisconfigurationException: Another program listens there, or nobody may.
    """
    if uses_agent_store() or environment.world_size() == 1:
        # torchrun listens there itself, or there is no other rank.
        return
    port = environment.main_port
    if reason := why_not_listen(port):
        raise MisconfigurationException(
            f"MASTER_PORT={port}, where rank 0 would wait for the others, {reason}. Set "
            "MASTER_PORT to a free port; where Lightning starts the processes of one node, it "
            "finds one if you unset it. Groups that this program has destroyed keep their port "
            "until it ends, too."
        )
