import pytest

from recipes.mrpc.__main__ import main
from tests.helpers.recipes import ROOT


@pytest.mark.parametrize("subcommand", ["fit", "validate", "test", "predict"])
def test_a_missing_checkpoint_is_one_line_before_anything_is_made(subcommand, capsys):
    # The data are made first, and would complain of their path.
    config = ["--config", str(ROOT / "mrpc" / "simulated.yaml"), "--data.source=path"]
    with pytest.raises(SystemExit) as exit_info:
        main([subcommand, *config, "--ckpt_path", "no/such.ckpt"])
    assert exit_info.value.code == 2
    assert "error: --ckpt_path no/such.ckpt does not exist" in capsys.readouterr().err
