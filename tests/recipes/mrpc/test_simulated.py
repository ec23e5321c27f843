"""What `simulated.yaml` promises: scores above those of the baselines."""

import pytest

from tests.helpers.recipes import quiet_cli


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_model_beats_both_baselines(seed, tmp_path):
    seeds = [f"--seed_everything={seed}", f"--data.seed={seed}"]
    cli = quiet_cli("mrpc", tmp_path, *seeds)
    cli.trainer.fit(cli.model, cli.datamodule)
    assert cli.model.num_evaluated == len(cli.datamodule.pairs["validation"]) > 1000
    f1 = float(cli.trainer.callback_metrics["val/f1"])
    baselines = cli.datamodule.baselines("validation")
    for name, (baseline, _) in baselines.items():
        assert f1 > baseline + 0.01, name
    # The test split tells the same: the model was not chosen by the validation pairs.
    tested = cli.trainer.test(cli.model, cli.datamodule, verbose=False)[0]["test/f1"]
    assert all(tested > score for score, _ in cli.datamodule.baselines("test").values())
