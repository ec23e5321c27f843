"""Small programs that share nothing with our recipes: what people bring to `plan` and `audit`."""

from pathlib import Path

FOLDER = Path(__file__).parent
PROJECTS = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))
ARGUMENTS = {"tabular": ("fit",)}
NUM_CARDS = {"latent": 2, "own_loop": 2}
"""As they say themselves; the others run on one."""
