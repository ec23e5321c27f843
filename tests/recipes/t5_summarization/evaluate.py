"""What each rank of a test does: test and predict with a small model on the fixtures."""

import json
import sys
from pathlib import Path

from recipes.t5_summarization.data import SummarizationData
from tests.recipes.t5_summarization.conftest import FIXTURES, VOCABULARY
from tests.recipes.t5_summarization.test_training import module_for, trainer_for


def main(path: Path, num_ranks: int) -> None:
    """Print the metrics of the test, and leave the summaries in `out.jsonl`."""
    data = SummarizationData(
        "path",
        str(FIXTURES),
        vocab_size=VOCABULARY,
        batch_size=3,
        max_source_length=160,
        max_target_length=24,
    )
    module = module_for(path)
    trainer = trainer_for("hpu", path, devices=num_ranks, logger=False, val_check_interval=None)
    metrics = trainer.test(module, datamodule=data, verbose=False)
    trainer.predict(module, datamodule=data, return_predictions=False)
    if trainer.is_global_zero:
        print(json.dumps({name: value for each in metrics for name, value in each.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
