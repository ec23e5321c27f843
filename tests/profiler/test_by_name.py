"""`Trainer(profiler="hpu")` and the class path, in either family, and on several cards."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.helpers.process import run, run_python
from tests.helpers.profiles import table


def test_graph_compilations_of_lazy_mode_are_counted(tmp_path: Path) -> None:
    """The profiler against `GraphMonitor`, which counts from the callbacks."""
    result = run_python(
        """
        import sys
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
        cwd=Path(__file__).parents[2],
    )
    expected, summary = result.stdout.split("\n", 1)
    rows = table(summary)
    assert int(expected) >= 2
    assert rows["graph compilations"][0] == "0"
    assert rows["graph compilations"][2] == expected
    assert rows["host syncs"] == ["0", "0", "0"]
    assert rows["time compiling"][2].endswith(" ms")
    assert float(rows["time compiling"][2].split()[0]) > 0


def test_the_name_means_the_class_of_the_family(tmp_path: Path) -> None:
    """In one process, with torch's profiler imported first and this package never."""
    run_python(
        """
        import sys
        from torch.profiler import ProfilerActivity, profile
        from lightning.pytorch.profilers import PyTorchProfiler
        import lightning.pytorch, pytorch_lightning

        for pl in (pytorch_lightning, lightning.pytorch):
            quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
            trainer = pl.Trainer(accelerator="hpu", devices=1, profiler="HPU", fast_dev_run=3,
                                 default_root_dir=sys.argv[1], enable_model_summary=False, **quiet)
            import lightning_gaudi, lightning_gaudi.pytorch_lightning as mirror
            ours = lightning_gaudi if pl is lightning.pytorch else mirror
            assert type(trainer.profiler) is ours.HPUProfiler, type(trainer.profiler)
            assert isinstance(trainer.profiler, pl.profilers.Profiler)

            from lightning.pytorch.demos.boring_classes import BoringModel as Boring
            from pytorch_lightning.demos.boring_classes import BoringModel as OtherBoring
            trainer.fit((Boring if pl is lightning.pytorch else OtherBoring)())
            assert "3 training steps" in trainer.profiler.summary()
            for name in ("simple", None, ours.HPUProfiler(row_limit=3)):
                pl.Trainer(accelerator="hpu", profiler=name, **quiet)
            try:
                pl.Trainer(profiler="habana", **quiet)
            except pl.utilities.exceptions.MisconfigurationException as error:
                assert "can only be one of" in str(error)
            else:
                raise AssertionError
        """,
        str(tmp_path),
    )


@pytest.mark.parametrize("package", ["lightning_gaudi", "lightning_gaudi.pytorch_lightning"])
def test_the_command_line_and_yaml_name_the_profiler(package: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        f"""
trainer:
  profiler:
    class_path: {package}.HPUProfiler
    init_args: {{dirpath: {tmp_path}/traces, filename: mine, row_limit: 3}}
"""
    )
    lightning = "pytorch_lightning" if "." in package else "lightning.pytorch"
    source = f"""
        import sys
        from {lightning}.cli import LightningCLI
        from {lightning}.demos.boring_classes import BoringModel
        quiet = ["enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger"]
        shared = ["fit", "--trainer.accelerator=hpu", "--trainer.fast_dev_run=2"]
        shared += [f"--trainer.{{name}}=false" for name in quiet]
        for args in (["--trainer.profiler=hpu"], ["--config=" + sys.argv[1]]):
            cli = LightningCLI(BoringModel, args=shared + args, save_config_callback=None)
            print(type(cli.trainer.profiler).__module__)
    """
    result = run_python(
        source, str(config), env={"JSONARGPARSE_DEPRECATION_WARNINGS": "off"}, cwd=tmp_path
    )
    assert result.stdout.split() == [f"{package}.profiler.hpu"] * 2, result.stdout
    report = (tmp_path / "traces" / "fit-mine-rank0.txt").read_text()
    assert report.startswith("HPU profile of 2 training steps")
    assert len(report.split("host, total\n")[1].splitlines()) == 3


@pytest.mark.slow
def test_every_rank_has_its_trace_and_report_and_rank_0_speaks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """
import sys
from lightning_gaudi import HPUProfiler
from tests.helpers.tiny import TinyModule, batches, hpu_trainer
for filename in (None, "mine"):
    profiler = HPUProfiler(sys.argv[1], filename)
    trainer = hpu_trainer(devices=2, profiler=profiler, max_epochs=1)
    trainer.fit(TinyModule(), batches(12))
"""
    )
    folder = tmp_path / "out"
    root = str(Path(__file__).parents[2])
    result = run(
        [sys.executable, str(script), str(folder)],
        env={"LIGHTNING_GAUDI_SIMULATE": "2", "PYTHONPATH": root},
    )
    assert sorted(path.name for path in folder.iterdir()) == [
        "fit-mine-rank0.4.pt.trace.json",
        "fit-mine-rank0.txt",
        "fit-mine-rank1.4.pt.trace.json",
        "fit-mine-rank1.txt",
        "fit-rank0.4.pt.trace.json",
        "fit-rank1.4.pt.trace.json",
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
