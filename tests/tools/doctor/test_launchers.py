"""What launchers tell, and how reports travel through them."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from lightning_gaudi.tools.doctor.launchers import named_hosts, place
from lightning_gaudi.tools.doctor.wire_format import Joiner, cut


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (None, None, None)),
        ({"RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "1"}, (3, 16, 1)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            },
            (1, 2, 0),
        ),
        ({"SLURM_PROCID": "9", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1"}, (9, 16, 1)),
        # mpirun within an allocation of SLURM has numbered the ranks.
        ({"SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "4"}, (4, None, None)),
    ],
)
def test_a_process_knows_its_place(
    environment: dict[str, str], expected: tuple[int | None, ...]
) -> None:
    assert place(environment) == expected


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ("mpirun -np 2 --host gaudi1:8,gaudi2:8", ["gaudi1", "gaudi2"]),
        ("mpirun -H a,a", ["a"]),
        ("srun --nodelist=gaudi[01-03,7]", ["gaudi01", "gaudi02", "gaudi03", "gaudi7"]),
        ("srun -w a,b[1-2]x", ["a", "b1x", "b2x"]),
        ("mpirun --host localhost,10.0.0.1", []),
        ("srun --nodes=2", []),
    ],
)
def test_hosts_are_those_that_options_name(words: str, hosts: list[str]) -> None:
    assert named_hosts(words.split()) == hosts


def test_hosts_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("gaudi1 slots=8\n# not this one\ngaudi2 slots=8\n")
    assert named_hosts(["mpirun", "--hostfile", str(file)]) == ["gaudi1", "gaudi2"]
    assert named_hosts(["mpirun", "--hostfile", str(tmp_path / "none")]) == []


def test_messages_come_whole_out_of_mixed_and_labelled_lines() -> None:
    numbers = random.Random(0)
    messages = {f"host-{rank}": [numbers.random() for _ in range(200)] for rank in range(3)}
    lines = [line for name, each in messages.items() for line in cut("t1", name, each)]
    assert len(lines) > 6
    assert max(map(len, lines)) < 1024
    numbers.shuffle(lines)
    noise = ["habana says something", "@lightning-gaudi-doctor t2 host-0 1/1 eJw="]
    labelled = [f"[1,{index}]<stdout>: {line}\n" for index, line in enumerate(lines)]
    joiner = Joiner("t1")
    found = [joiner.add(line) for line in itertools.chain(noise, labelled)]
    complete = [each for each in found if each is not None]
    assert sorted(complete) == sorted(messages.values())
