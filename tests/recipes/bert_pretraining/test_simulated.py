"""What `simulated_nsp.yaml` promises: a sense for next sentences."""

import pytest

from tests.helpers.recipes import quiet_cli


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_model_tells_next_sentences_from_others(tmp_path):
    cli = quiet_cli("bert_pretraining", tmp_path, config="simulated_nsp")
    cli.trainer.fit(cli.model, cli.datamodule)
    metrics = cli.trainer.callback_metrics
    assert metrics["val/nsp_majority"] < 0.53
    assert metrics["val/nsp_accuracy"] >= metrics["val/nsp_majority"] + 0.05
