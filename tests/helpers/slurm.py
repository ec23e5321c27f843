"""A SLURM of one machine, for one test: its daemons run from a folder, and end with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.helpers.ports import free_port

_DAEMONS = ("munged", "slurmctld", "slurmd")
_COMMANDS = ("srun", "sbatch", "scontrol", "scancel")
_PATH = os.pathsep.join((os.environ["PATH"], "/usr/sbin"))
_READY_S = 60

_SETTINGS = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
JobRequeue=1
KillWait=5
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=1000 State=UNKNOWN
PartitionName=tests Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """What is submitted to the SLURM of a folder, and what became of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}

    def submit(self, script: str, env: Mapping[str, str]) -> str:
        """Hand in a batch script; the number of its job."""
        path = self.folder / "job.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        return self.call("sbatch", "--parsable", str(path), env=env).strip()

    def state(self, job: str) -> str:
        """Such as RUNNING or COMPLETED."""
        said = self.call("scontrol", "show", "job", job)
        return said.partition("JobState=")[2].split()[0]

    def wait(self, job: str, states: Sequence[str], timeout: float) -> str:
        """Wait until a job is in one of some states, which is returned."""
        end = time.monotonic() + timeout
        while (state := self.state(job)) not in states:
            assert time.monotonic() < end, f"job {job} is {state} after {timeout} s"
            time.sleep(0.5)
        return state

    def call(self, *command: str, env: Mapping[str, str] | None = None) -> str:
        """Run a command of SLURM's; what it has said."""
        result = subprocess.run(
            command,
            env={**os.environ, **(env or {}), **self.env},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
        return result.stdout


@contextlib.contextmanager
def running_slurm(folder: Path) -> Iterator[Slurm]:
    """Start the daemons in an own folder; skip the test where there are none, or we may not."""
    missing = [name for name in (*_DAEMONS, *_COMMANDS) if not shutil.which(name, path=_PATH)]
    if missing or os.geteuid() != 0:
        pytest.skip("needs Debian's slurm-wlm (apt-get install slurm-wlm), and to be root")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(64))
    key.chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    settings = _SETTINGS.format(host=host, folder=folder, ports=_free_ports())
    (folder / "slurm.conf").write_text(settings)
    slurm = Slurm(folder)
    with contextlib.ExitStack() as stack:
        munge = {"socket": "munge.socket", "pid-file": "munge.pid", "seed-file": "munge.seed"}
        options = [f"--{name}={folder / file}" for name, file in munge.items()]
        options += [f"--key-file={key}", f"--log-file={folder / 'munge.log'}"]
        stack.enter_context(_daemon(slurm, "munged", "--foreground", "--force", *options))
        _wait_for(folder / "munge.socket")
        stack.enter_context(_daemon(slurm, "slurmctld", "-D"))
        stack.enter_context(_daemon(slurm, "slurmd", "-D", "-N", host))
        _wait_until_idle(slurm, host)
        yield slurm


@contextlib.contextmanager
def _daemon(slurm: Slurm, *command: str) -> Iterator[None]:
    log = slurm.folder / f"{command[0]}.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command, env={**os.environ, **slurm.env}, stdout=file, stderr=file
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_idle(slurm: Slurm, host: str) -> None:
    end = time.monotonic() + _READY_S
    while True:
        with contextlib.suppress(AssertionError):
            if "State=IDLE" in slurm.call("scontrol", "show", "node", host):
                return
        logs = [slurm.folder / f"{name}.log" for name in _DAEMONS]
        said = "".join(log.read_text()[-2000:] for log in logs if log.exists())
        assert time.monotonic() < end, f"SLURM did not start in {_READY_S} s:\n{said}"
        time.sleep(0.5)


def _wait_for(path: Path) -> None:
    end = time.monotonic() + _READY_S
    while not path.exists():
        assert time.monotonic() < end, f"no {path} after {_READY_S} s"
        time.sleep(0.1)


def _free_ports() -> list[int]:
    return [free_port(), free_port()]
