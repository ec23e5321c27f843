from pathlib import Path

import pytest

import recipes.bert_pretraining
from tests.helpers.forked import fork_module

ROOT = Path(recipes.bert_pretraining.__file__).parents[2]


def _demo(path: Path, *overrides: str, lazy: bool = True):
    """Run the demonstration with its logs in `path`."""
    logger = [
        "--trainer.logger=lightning.pytorch.loggers.CSVLogger",
        f"--trainer.logger.save_dir={path}",
    ]
    name = "recipes.bert_pretraining.demo"
    env = {"PT_HPU_LAZY_MODE": "1" if lazy else "0"}
    return fork_module(name, *logger, *overrides, env=env, cwd=ROOT, timeout=900, check=False)


@pytest.mark.slow
def test_a_run_that_misses_a_goal_says_so_and_fails(corpus, tmp_path):
    result = _demo(
        tmp_path,
        "--data.source=path",
        f"--data.path={corpus}",
        "--data.validation_share=0.1",
        "--data.batch_size=2",
        "--data.vocab_size=120",
        "--trainer.max_steps=4",
        "--trainer.val_check_interval=4",
        "--trainer.log_every_n_steps=2",
        lazy=False,
    )
    assert result.returncode == 1, result.stderr
    assert "FAILED: margin below the lower of both" in result.stdout
    assert "MISSED (at least 0.3)" in result.stdout
    assert "none: eager mode" in result.stdout
    (drawing,) = tmp_path.rglob("report.png")
    assert drawing.read_bytes().startswith(b"\x89PNG")
    assert "MISSED (at least 0.3)" in (drawing.parent / "report.html").read_text()
    assert (drawing.parent / "export" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demonstration_meets_its_goals(tmp_path):
    result = _demo(tmp_path)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert "Every goal was met." in result.stdout
    assert result.stdout.count(" met ") == 4
