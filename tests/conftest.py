"""The whole suite runs on a simulated server of eight cards, one of which this process drives."""

import os

# Before torch is imported: the simulated device registers at the end of `import torch`.
os.environ.setdefault("LIGHTNING_GAUDI_SIMULATE", "8")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("PT_HPU_LAZY_MODE", None)

# Activates the simulator, so that test modules may import habana_frameworks before torch.
import torch  # noqa: F401
