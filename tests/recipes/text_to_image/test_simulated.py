"""What `simulated.yaml` promises: pictures that a classifier of real digits recognizes."""

import pytest

from tests.helpers.recipes import quiet_cli


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_classifier_of_real_digits_agrees_with_the_captions(seed, tmp_path):
    seeds = [f"--seed_everything={seed}", f"--data.seed={seed}"]
    cli = quiet_cli("text_to_image", tmp_path, *seeds)
    cli.trainer.fit(cli.model, cli.datamodule)
    # Five pictures of each pair, from other noise than validation's.
    tested = cli.trainer.test(cli.model, cli.datamodule, verbose=False)[0]
    assert tested["test/agreement"] >= 90
    assert tested["test/agreement_held_out"] >= 60
    assert tested["test/distance"] < 30
