"""Writes docs/reference/patches.md: python -m lightning_gaudi._patches.document."""

from __future__ import annotations

import importlib
from pathlib import Path

from .register import REGISTER, Patch

_HEAD = """\
# What is patched

This package changes a few things in other packages while they run, because Lightning asks nobody
outside of it which accelerator to take, and because some parts of torch, transformers and DeepSpeed
are made for other devices. This page lists every change. It is generated from the register
(`lightning_gaudi/_patches/register.py`) and from what tools add to it while they watch a program
(`lightning_gaudi/tools/*/patches.py`). Nothing is patched without an entry there; tests compare the
entries with the sources and with a running process.

- A patch is applied right after its module has been imported, or where our code needs it. If no HPU
  is asked for, the patched code does what it did before.
- A patch looks for the names that it changes or relies on. If one is gone, the whole patch is off
  and a warning names it; other patches stay on. If a run would go wrong without it, it raises an
  error.
- "Checked with" names the versions whose sources have all that the patch changes or relies on.
- `LIGHTNING_GAUDI_AUTOLOAD=0` in the environment leaves all of them off.
- The simulator takes the place of the device and of the vendor's package. What it sets in torch is
  what these set, and is not listed here.

`{trainer}` stands for `lightning.pytorch` and `pytorch_lightning`, `{fabric}` for
`lightning.fabric` and `lightning_fabric`.
"""
_LIBRARIES = {
    "lightning": "Lightning",
    "torch": "torch",
    "transformers": "transformers",
    "deepspeed": "DeepSpeed",
    "diffusers": "diffusers",
    "safetensors": "safetensors",
    "python": "Python",
}


def every_patch() -> tuple[Patch, ...]:
    """Returns all patches of the register and of the tools."""
    package = Path(__file__).parents[1]
    tools = sorted(path.parent.name for path in package.glob("tools/*/patches.py"))
    names = [f"{package.name}.tools.{tool}.patches" for tool in tools]
    return (*REGISTER, *(each for name in names for each in importlib.import_module(name).PATCHES))


def markdown() -> str:
    """Returns the document's text."""
    parts, patches = [_HEAD], every_patch()
    for library, title in _LIBRARIES.items():
        parts.append(f"\n## {title}\n")
        parts += [_section(patch) for patch in patches if patch.library == library]
    return "".join(parts)


def _section(patch: Patch) -> str:
    when = f"after `{patch.trigger}` is imported" if patch.trigger else "where our code needs it"
    targets = "\n".join(f"  - `{target}`" for target in patch.targets)
    return f"""
### {patch.name}

{patch.why}

- Changes
{targets}
- Applied {when}; undone: {patch.undone}
- Without it, {patch.without}
- Checked with {_LIBRARIES[patch.library]} {patch.checked}
"""


if __name__ == "__main__":
    Path(__file__).parents[2].joinpath("docs", "reference", "patches.md").write_text(markdown())
