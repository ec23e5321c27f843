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


def consolidate(folder: str | Path, output: Path) -> None:
    """Writes a checkpoint in shards to one file, which takes the place of `output` when complete.

    Args:
        folder: The folder or address to which DeepSpeed, FSDP or tensor parallel has saved.
        output: The file to write. It ends with `.safetensors` for the weights alone, or with
            `.ckpt` or `.pt` for all that was saved but DeepSpeed's optimizer.

    Raises:
        ImportError: DeepSpeed has saved it, and is not installed.
        OSError: There is no such checkpoint, a file of it is missing, or `output` cannot be
            written.
        ValueError: A file is damaged or not trusted, or `output` has another suffix.
    """
    from lightning_gaudi.checkpoint.single_file import check_output
    from lightning_gaudi.checkpoint.stored_shards import fetched

    check_output(output)
    with fetched(folder, is_alone=True) as found:
        if "://" in str(found):
            raise FileNotFoundError(
                f"There is no checkpoint in shards at {folder}. Pass the address that it was saved "
                "to."
            )
        _write(Path(found), output)


def _write(folder: Path, output: Path) -> None:
    from lightning_gaudi.checkpoint.single_file import write_single_file
    from lightning_gaudi.checkpoint.torch_dcp import load
    from lightning_gaudi.checkpoint.torch_dcp.layout import is_sharded_folder

    if not is_sharded_folder(folder):
        from lightning_gaudi.deepspeed.checkpoint.consolidate import consolidated

        write_single_file(*consolidated(folder), output)
    elif output.suffix == ".safetensors":
        write_single_file({"model": load.load_full_state(folder)}, "model", output)
    else:
        write_single_file(load.load_full_checkpoint(folder), "state_dict", output)
