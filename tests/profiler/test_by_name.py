"""`Trainer(profiler="hpu")` and the class path, in either family, and on several cards."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.forked import fork_python
from tests.helpers.process import run
from tests.helpers.profiles import table

ROOT = Path(__file__).parents[2]
CLI = [
    *(
        f"--trainer.{name}=false"
        for name in ("enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    ),
    "--seed_everything=false",
    "--trainer.logger=false",
    "--trainer.accelerator=hpu",
    "--trainer.devices=1",
]


@pytest.mark.slow
def test_the_name_means_the_class_of_the_family_and_counts_graphs(tmp_path: Path) -> None:
    """In one process: torch's profiler is imported first, this package never, the mode is lazy.

    The graphs are compared with `GraphMonitor`'s, which counts from the callbacks.
    """
    result = fork_python(
        """
        import sys
        from torch.profiler import ProfilerActivity, profile
        from lightning.pytorch.profilers import PyTorchProfiler
        import lightning.pytorch, pytorch_lightning

        quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False,
                     accelerator="hpu", devices=1, enable_model_summary=False)
        for pl in (pytorch_lightning, lightning.pytorch):
            trainer = pl.Trainer(profiler="HPU", fast_dev_run=3, default_root_dir=sys.argv[1],
                                 **quiet)
            import lightning_gaudi, lightning_gaudi.pytorch_lightning as mirror
            ours = lightning_gaudi if pl is lightning.pytorch else mirror
            assert type(trainer.profiler) is ours.HPUProfiler, type(trainer.profiler)
            assert isinstance(trainer.profiler, pl.profilers.PyTorchProfiler)

            from lightning.pytorch.demos.boring_classes import BoringModel as Boring
            from pytorch_lightning.demos.boring_classes import BoringModel as OtherBoring
            trainer.fit((Boring if pl is lightning.pytorch else OtherBoring)())
            assert "3 training steps" in trainer.profiler.summary()
            names = [event.name for event in trainer.profiler.function_events]
            assert names.count("[pl][module]torch.nn.modules.linear.Linear: layer") == 6
            for name in ("simple", None, ours.HPUProfiler(row_limit=3)):
                pl.Trainer(profiler=name, **quiet)
            try:
                pl.Trainer(profiler="habana", **quiet)
            except pl.utilities.exceptions.MisconfigurationException as error:
                assert "can only be one of" in str(error)
            else:
                raise AssertionError

        from lightning_gaudi.callbacks import GraphMonitor
        from tests.helpers.tiny import TinyModule, batches, hpu_trainer
        monitor = GraphMonitor()
        trainer = hpu_trainer(
            profiler="hpu", max_epochs=1, default_root_dir=sys.argv[1], callbacks=[monitor]
        )
        trainer.fit(TinyModule(), batches(8))
        print(monitor.report.training_graphs)
        print(trainer.profiler.summary())
        """,
        str(tmp_path),
        env={"PT_HPU_LAZY_MODE": "1"},
        cwd=ROOT,
    )
    expected, summary = result.stdout.split("\n", 1)
    rows = table(summary)
    assert int(expected) >= 2
    assert rows["graph compilations"][0] == "0"
    assert rows["graph compilations"][2] == expected
    assert rows["host syncs"] == ["0", "0", "0"]
    assert "time compiling" not in rows  # a simulated card compiles nothing


@pytest.fixture(params=["lightning_gaudi", "lightning_gaudi.pytorch_lightning"])
def family(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Our package, with the command line's own warnings turned off, and without pytest's line."""
    monkeypatch.setattr(sys, "argv", sys.argv[:1])
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    return str(request.param)


def trainer_of(family: str, *args: str, **settings: Any) -> Any:
    """The Trainer that the command line of a family of Lightning makes, and its parser."""
    lightning = "pytorch_lightning" if "." in family else "lightning.pytorch"
    cli = importlib.import_module(f"{lightning}.cli").LightningCLI
    model = importlib.import_module(f"{lightning}.demos.boring_classes").BoringModel
    made = cli(model, args=[*args, *CLI], save_config_callback=None, run=False, **settings)
    ours = f"{family}.profiler.hpu"
    assert type(made.trainer.profiler).__module__ == ours, type(made.trainer.profiler)
    return made


@pytest.mark.parametrize("way", ["argument", "environment"])
def test_the_command_line_and_the_environment_name_the_profiler(
    family: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ["--trainer.profiler=hpu"]
    if way == "environment":
        monkeypatch.setenv("PL_TRAINER__PROFILER", "hpu")
        args = []
    trainer_of(family, *args, parser_kwargs={"default_env": True})


def test_yaml_names_the_profiler_with_its_arguments(family: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        f"""
trainer:
  fast_dev_run: 2
  profiler:
    class_path: {family}.HPUProfiler
    init_args:
      dirpath: {tmp_path}/traces
      filename: mine
      row_limit: 3
      record_module_names: false
      schedule: null
    dict_kwargs:
      profile_memory: true
"""
    )
    made = trainer_of(family, f"--config={config}")
    made.trainer.fit(made.model)
    report = (tmp_path / "traces" / "fit-mine-rank0.txt").read_text()
    assert report.startswith("HPU profile of 2 training steps")
    assert len(report.split("host, total\n")[1].splitlines()) == 3
    assert made.trainer.profiler._trace.arguments == {"profile_memory": True}
    # What the command line saves, it reads again; as Lightning's SaveConfigCallback saves it.
    config.write_text(made.parser.dump(made.config, skip_none=False))
    again = trainer_of(family, f"--config={config}").trainer.profiler
    assert (again._row_limit, again._asked_schedule) == (3, None)
    config.write_text(config.read_text().replace("schedule: null", "schedule: default"))
    assert trainer_of(family, f"--config={config}").trainer.profiler._asked_schedule == "default"


@pytest.mark.slow
def test_every_rank_has_its_trace_and_report_and_rank_0_speaks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """
import sys
from lightning.pytorch.profilers import SimpleProfiler
from lightning_gaudi import HPUProfiler
from tests.helpers.tiny import TinyModule, batches, hpu_trainer
folder = sys.argv[1]
profilers = [HPUProfiler(folder), HPUProfiler(folder, "mine"), SimpleProfiler(folder, "theirs")]
for profiler in profilers:
    trainer = hpu_trainer(devices=2, profiler=profiler, max_epochs=1)
    trainer.fit(TinyModule(), batches(12))
"""
    )
    folder = tmp_path / "out"
    result = run(
        [sys.executable, str(script), str(folder)],
        env={"LIGHTNING_GAUDI_SIMULATE": "2", "PYTHONPATH": str(ROOT)},
    )
    assert sorted(path.name for path in folder.iterdir()) == [
        "fit-mine-rank0.4.pt.trace.json",
        "fit-mine-rank0.txt",
        "fit-mine-rank1.4.pt.trace.json",
        "fit-mine-rank1.txt",
        "fit-rank0.4.pt.trace.json",
        "fit-rank1.4.pt.trace.json",
        "fit-theirs-0.txt",
        "fit-theirs-1.txt",
    ]
    for rank in range(2):
        report = (folder / f"fit-mine-rank{rank}.txt").read_text()
        assert report.startswith(f"HPU profile of 6 training steps, rank {rank} of 2\n")
        assert table(report)["host syncs"][0] == "0"  # DDP waits in its first step
        trace = json.loads((folder / f"fit-mine-rank{rank}.4.pt.trace.json").read_text())
        assert trace["distributedInfo"]["rank"] == rank
    shown = result.stdout + result.stderr
    assert shown.count("HPU profile of 6 training steps, rank 0 of 2") == 1
    assert "rank 1 of 2" not in shown
