"""Adds `lightning-gaudi consolidate`, which makes one file of a checkpoint in shards."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_gaudi.tools.command_line.catalog import local_file
from lightning_gaudi.untrusted import shown

if TYPE_CHECKING:
    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_DESCRIPTION = """\
Write the checkpoint that DeepSpeed, FSDP or tensor parallel saved in shards, a folder, to
one file, for any strategy and any machine. No HPU is needed, and all of the model has to
fit in this machine's memory. Of DeepSpeed's, the fp32 masters are taken; it does not keep
the optimizer."""
_EPILOG = """\
examples:
  lightning-gaudi consolidate last.ckpt model.safetensors   the weights alone
  lightning-gaudi consolidate last.ckpt whole.ckpt          for load_from_checkpoint and
                                                            Trainer.test(ckpt_path=...)"""


def add_parser(subparsers: _Subparsers) -> None:
    """Adds the `consolidate` command."""
    parser = subparsers.add_parser(
        "consolidate",
        help="write a checkpoint in shards to one file",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folder", metavar="FOLDER", help="the checkpoint: a folder, or an address such as s3://..."
    )
    parser.add_argument(
        "output", type=local_file, metavar="OUTPUT", help="ends with .safetensors, .ckpt or .pt"
    )
    parser.set_defaults(run=_run, error=parser.error)


def _run(options: argparse.Namespace, command: Sequence[str]) -> int:
    if command:
        options.error(f"unrecognized arguments after --: {' '.join(command)}")
    # DeepSpeed looks for an accelerator when it is imported, and none is needed here.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from lightning_gaudi.deepspeed.checkpoint.consolidate import consolidate

    try:
        _check_installed(options.output)
        consolidate(options.folder, options.output)
    except (OSError, ValueError, ImportError) as error:
        print(f"lightning-gaudi: {shown(error)}", file=sys.stderr)
        return 2
    print(f"{options.output}: {options.output.stat().st_size / 2**20:.1f} MiB")
    return 0


def _check_installed(output: Path) -> None:
    """Checks that safetensors, which comes with an extra, is installed if the output needs it."""
    if output.suffix == ".safetensors" and importlib.util.find_spec("safetensors") is None:
        raise ModuleNotFoundError(
            f"{output} needs the package safetensors, which is not installed. Run: pip install "
            f"safetensors; or pass {output.stem}.ckpt, which needs none.",
            name="safetensors",
        )
