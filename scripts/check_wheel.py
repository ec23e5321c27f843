"""Prove that the built wheel is enough: in fresh environments, outside the checkout.

    python scripts/check_wheel.py                 # make check-wheel
    python scripts/check_wheel.py --output dist   # make dist: keeps sdist and wheel

Sdist and wheel are built of the files that git tracks. Then pip installs torch and the wheel, with
what the wheel declares and nothing else, and in an empty folder, with an empty home, the wheel
trains on simulated cards; likewise with each extra alone. What is proved is printed, a line each;
what fails is printed with all that it said.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import resource
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fresh_environments import CONSTRAINTS, Environment, ProofError, call

_REPOSITORY = Path(__file__).resolve().parents[1]
_TRAINING = _REPOSITORY / "scripts" / "plain_training.py"
_RECIPES = ("bert_pretraining", "llm_finetuning", "mrpc", "t5_summarization", "text_generation")
_RECIPES += ("text_to_image",)
# A few steps on a small text: that of Python alone, and each sentence rewritten once.
_FEW_STEPS = ["--trainer.max_steps=2", "--trainer.limit_val_batches=1"]
_MORE = {recipe: ["--data.packages=[]"] for recipe in _RECIPES}
_MORE |= {
    "mrpc": ["--data.packages=[]", "--data.pairs_per_sentence=1"],
    "text_to_image": ["--data.num_generated=0"],
}


def main() -> int:
    """Build, prove, keep; the status is 1 if something is not as it should be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="keep sdist and wheel there")
    options = parser.parse_args()
    start, before = time.monotonic(), _cpu_seconds()
    try:
        with tempfile.TemporaryDirectory(prefix="check-wheel-") as folder:
            built = _check(Path(folder))
            for file in built if options.output else ():
                options.output.mkdir(parents=True, exist_ok=True)
                print(shutil.copy2(file, options.output))
    except ProofError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    seconds = f"{time.monotonic() - start:.0f} s, {_cpu_seconds() - before:.0f} of a CPU"
    print(f"check-wheel: everything holds ({seconds})")
    return 0


def _check(folder: Path) -> list[Path]:
    """Prove everything; sdist and wheel."""
    home = folder / "home"
    home.mkdir()
    built = _build(folder)
    plain = Environment(folder / "plain", home)
    _check_base(plain, built[1], _empty(folder / "plain-runs"))
    checks = {"deepspeed": _check_deepspeed, "recipes,diffusion": _check_recipes}
    for extra, check in checks.items():
        environment = Environment(folder / extra, home, like=plain)
        with _proved(f"the extra {extra!r} adds its packages, and changes no other"):
            environment.install(f"lightning-gaudi[{extra}]")
            if lost := plain.distributions() - environment.distributions():
                raise ProofError(f"{lost} are not there any more")
        check(environment, _empty(folder / f"{extra}-runs"))
    return built


def _build(folder: Path) -> list[Path]:
    """Sdist and wheel of the tracked files, as they stand in the checkout."""
    tools, source = Environment(folder / "tools", folder), folder / "source"
    listed = call(["git", "ls-files", "-z"], os.environ, _REPOSITORY)
    for name in filter(None, listed.split("\0")):
        if (_REPOSITORY / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_REPOSITORY / name, source / name)
    with _proved("sdist and wheel are built, and are what a registry takes"):
        tools.install("build", "twine", "setuptools>=77")
        build = [str(tools.bin / "python"), "-m", "build"]
        env = os.environ | {"PIP_QUIET": "1"}
        call([*build, "--outdir", str(folder / "dist"), str(source)], env)
        (sdist,), (wheel,) = ((folder / "dist").glob(name) for name in ("*.tar.gz", "*.whl"))
        call([str(tools.bin / "twine"), "check", "--strict", str(sdist), str(wheel)], env)
    with _proved("the wheel of the sdist is that of the checkout, and claims no other name"):
        call([*build, "-w", "--no-isolation", "--outdir", str(folder / "other"), str(source)], env)
        (other,) = (folder / "other").glob("*.whl")
        if missing := _contents(wheel).items() ^ _contents(other).items():
            raise ProofError(f"they differ in {missing}")
        roots = {name.split("/")[0] for name in _contents(wheel)}
        ours = {"lightning_gaudi", "_lightning_gaudi_autoload.py", "_lightning_gaudi_autoload.pth"}
        if others := {name for name in roots - ours if not name.endswith(".dist-info")}:
            raise ProofError(f"it has {others} at the top, too")
    return [sdist, wheel]


def _contents(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as archive:
        return {each.filename: each.CRC for each in archive.infolist()}


def _check_base(environment: Environment, wheel: Path, empty: Path) -> None:
    (torch,) = re.findall("^torch==.*", CONSTRAINTS.read_text(), re.MULTILINE)
    with _proved(f"pip installs it beside {torch}"):
        environment.install(torch)
        environment.install(str(wheel))
    for name in ("lightning", "pytorch_lightning"):
        with _proved(f"`import {name}` warns of nothing where there is no card"):
            environment.run("python", "-W", "error", "-c", f"import {name}", cwd=empty)
    with _proved("the environment alone gives a program, in its own order, a simulated card"):
        program = "import habana_frameworks.torch; import torch; torch.ones(1, device='hpu')"
        words = ("env", "LIGHTNING_GAUDI_SIMULATE=1", "python", "-W", "error", "-c", program)
        environment.run(*words, cwd=empty)
    with _proved("recipes are listed without their extra, and run says how to get it"):
        _expect(environment.run("lightning-gaudi", "recipes", cwd=empty), *_RECIPES)
        words = ("lightning-gaudi", "run", "mrpc", "fit", "--config", "simulated")
        said = environment.run(*words, cwd=empty, status=2)
        _expect(said, "Run: pip install 'lightning-gaudi[recipes]'\n")
    for kind, cards in itertools.product(("trainer", "fabric"), (1, 2)):
        with _proved(f"a {kind} on {cards} simulated card(s) gets the weights of a CPU"):
            _train(environment, empty, kind, cards)


def _train(environment: Environment, empty: Path, *arguments: object) -> None:
    shutil.copy(_TRAINING, empty)
    simulate = ("lightning-gaudi", "simulate", "--cards", "2", "--")
    said = environment.run(
        *simulate, "python", _TRAINING.name, *(str(each) for each in arguments), cwd=empty
    )
    if said.count("a rank equals the CPU") != arguments[1]:
        raise ProofError(f"not all ranks have ended: {said}")


def _check_deepspeed(environment: Environment, empty: Path) -> None:
    with _proved("ZeRO on 2 simulated cards gets the weights of a CPU"):
        _train(environment, empty, "trainer", 2, "deepspeed_stage_2")
    with _proved("and its checkpoint becomes one file"):
        words = ("consolidate", "deepspeed_stage_2.ckpt", "model.safetensors")
        _expect(environment.run("lightning-gaudi", *words, cwd=empty), "model.safetensors: ")


def _check_recipes(environment: Environment, empty: Path) -> None:
    def cli(*words: str) -> str:
        return environment.run("lightning-gaudi", *words, cwd=empty)

    for name, limit in {"--help": 2, "run mrpc --help": 4}.items():
        with _proved(f"`lightning-gaudi {name}` takes less than {limit} CPU-seconds"):
            before = _cpu_seconds()
            _expect(cli(*name.split()), f"usage: lightning-gaudi {name.removesuffix('--help')}")
            if (taken := _cpu_seconds() - before) > limit:
                raise ProofError(f"it took {taken:.1f}")
    for recipe in _RECIPES:
        with _proved(f"{recipe} trains where it is installed"):
            _train_recipe(environment, empty, recipe, ["lightning-gaudi", "run", recipe])
    with _proved("on two simulated cards as well, with workers for the data"):
        command = ["lightning-gaudi", "run", "mrpc"]
        more = ["--trainer.devices=2", "--data.num_workers=1"]
        _train_recipe(environment, empty, "mrpc", command, *more)
    with _proved("so does a copy of it, by its own name and file"):
        cli("copy", "mrpc")
        (empty / "recipes" / "mrpc" / "simulated.yaml").rename(empty / "mine.yaml")
        simulate = ["lightning-gaudi", "simulate", "--", "python", "-m", "recipes.mrpc"]
        _train_recipe(environment, empty, "mrpc", simulate, config="mine.yaml")


def _train_recipe(
    environment: Environment,
    empty: Path,
    recipe: str,
    command: Sequence[str],
    *more: str,
    config: str = "simulated",
) -> None:
    more = ("fit", "--config", config, *_FEW_STEPS, *_MORE.get(recipe, ()), *more)
    _expect(environment.run(*command, *more, cwd=empty), "`max_steps=2` reached", "is simulated")


def _expect(said: str, *parts: str) -> None:
    for part in parts:
        if part not in said:
            raise ProofError(f"{part!r} is not in what it said:\n{said}")


def _empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


@contextmanager
def _proved(claim: str) -> Iterator[None]:
    """Print what the block proves, and what that took."""
    start, before = time.monotonic(), _cpu_seconds()
    print(f"check-wheel: {claim} ...", end=" ", flush=True)
    yield
    print(f"yes ({time.monotonic() - start:.0f} s, {_cpu_seconds() - before:.0f} of a CPU)")


def _cpu_seconds() -> float:
    """Of all processes that have been started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
