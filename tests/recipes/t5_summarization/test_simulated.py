"""What `simulated.yaml` promises: summaries better than the lead."""

import pytest

from tests.helpers.recipes import quiet_cli


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_model_finds_and_copies_what_is_marked(seed, tmp_path):
    seeds = [f"--seed_everything={seed}", f"--data.seed={seed}"]
    cli = quiet_cli("t5_summarization", tmp_path, *seeds, "--data.num_generated=null")
    cli.trainer.fit(cli.model, cli.datamodule)
    scores = {name: float(value) for name, value in cli.trainer.callback_metrics.items()}
    assert len(cli.datamodule.rows_to_generate("validation")) > 200
    assert scores["val/rougeL"] > scores["val/lead1_rougeL"] + 10
    assert scores["val/rougeL"] >= 0.9 * scores["val/marked_rougeL"]
    assert scores["val/marked_rougeL"] > 97  # the trivial solution
    assert scores["val/distinct"] > 95  # percent of the summaries
    # The test split tells the same: nothing was chosen by the validation rows.
    tested = cli.trainer.test(cli.model, cli.datamodule, verbose=False)
    metrics = {name: value for each in tested for name, value in each.items()}
    assert metrics["test/rougeL"] >= 0.9 * metrics["test/marked_rougeL"]
