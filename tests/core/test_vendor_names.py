"""The list of the vendor's names against the source that uses them; no device is needed."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from textwrap import dedent

import pytest

from lightning_gaudi._core import vendor
from lightning_gaudi.distributed import devices, process_group
from lightning_gaudi.releases import Release
from lightning_gaudi.simulator import vendor_names as all_names
from lightning_gaudi.simulator.settings import RELEASES
from tests.core.vendor_uses import Uses, uses
from tests.helpers import vendor_names

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "lightning_gaudi"
LISTED = {callable_.name: callable_ for callable_ in vendor_names.CALLABLES}
MODULES = {module.name for module in vendor_names.MODULES}


@pytest.fixture(scope="module")
def used() -> Uses:
    return uses(PACKAGE / "_core" / "vendor" / "__init__.py")


def test_every_name_that_is_used_is_listed(used: Uses) -> None:
    missing = (used.names - set(LISTED)) | (used.modules - MODULES)
    missing -= MODULES
    assert not missing, f"add to vendor_names.py, after a look into the bridge: {sorted(missing)}"


def test_every_name_that_is_listed_is_used(used: Uses) -> None:
    # A module may be imported from its package, by a name as any other.
    modules = used.modules | used.names | {name.rpartition(".")[0] for name in used.names}
    unused = (set(LISTED) - used.names) | (MODULES - modules)
    assert not unused, f"take out of vendor_names.py: {sorted(unused)}"


def test_calls_fit_the_vendors_signatures(used: Uses) -> None:
    for call in used.calls:
        signature = _signature(LISTED[call.name].signature)
        positional, keywords = [None] * call.num_positional, dict.fromkeys(call.keywords)
        try:
            signature.bind(*positional, **keywords)
        except TypeError as error:
            pytest.fail(f"vendor.py:{call.line} calls {call.name}{signature}: {error}")


def _signature(parameters: str) -> inspect.Signature:
    return inspect.signature(eval(f"lambda {parameters}: None"))


@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
@pytest.mark.parametrize("listed", vendor_names.CALLABLES, ids=lambda listed: listed.name)
def test_every_release_has_the_names_with_these_parameters(
    listed: vendor_names.Callable, release: Release
) -> None:
    """By the list of all names; of what a function returns it knows nothing."""
    if "()." in listed.name:
        return
    module, _, name = f"torch.{listed.name}".rpartition(".")
    found = all_names.modules()[module].names[name]
    assert found.is_in(release, is_lazy=listed.is_lazy)
    theirs = found.signature(release)
    assert theirs is not None
    ours = _signature(listed.signature).parameters
    assert list(ours) == [argument.arg for argument in _arguments(theirs)]


def _arguments(parameters: str) -> list[ast.arg]:
    function = ast.parse(f"lambda {parameters}: None", mode="eval").body
    assert isinstance(function, ast.Lambda)
    return function.args.args


@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
def test_every_release_has_the_modules(release: Release) -> None:
    for module in vendor_names.MODULES:
        found = all_names.modules()[f"torch.{module.name}".rstrip(".")]
        assert found.is_in(release), module


def test_every_environment_variable_is_listed() -> None:
    """Those of the vendor's; that a line names one in passing (a docstring) does not count."""
    pattern = re.compile(r"(HABANA|HCCL|HCL|HLS|PT_HPU|PT|GC|ENABLE_CONSOLE|LOG_LEVEL)_[A-Z0-9_]+")
    found = {
        node.value
        for path in PACKAGE.rglob("*.py")
        # The second lists what a configuration may set, for others to read.
        if "simulator" not in path.parts and path.name != "environment_names.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if pattern.fullmatch(node.value)
    }
    listed = [variable.name for variable in vendor_names.VARIABLES]
    assert sorted(found) == sorted(listed)


def test_names_in_torch_are_those_that_the_package_uses() -> None:
    assert process_group.BACKEND == vendor_names.BACKEND
    assert devices.DEVICE.type == vendor_names.DEVICE_TYPE
    assert vendor.COMPILE_BACKEND == vendor_names.COMPILE_BACKEND
    recording = (PACKAGE / "profiler" / "recording.py").read_text()
    assert f'ProfilerActivity, "{vendor_names.PROFILER_ACTIVITY}"' in recording


def test_memory_stats_are_those_that_the_facade_describes() -> None:
    documented = dedent(vendor.memory_stats.__doc__ or "").split("\n\n")[1]
    assert tuple(re.findall(r"\w+", documented)) == vendor_names.MEMORY_STATS


def test_each_source_is_a_file_or_a_page_of_the_vendors() -> None:
    for record in (*vendor_names.CALLABLES, *vendor_names.MODULES):
        assert record.file.endswith(".py"), record
    pages = [record.page for record in vendor_names.CALLABLES]
    pages += [record.source for record in vendor_names.VARIABLES]
    theirs = ("https://docs.habana.ai/en/", "https://github.com/HabanaAI/")
    assert all(page.startswith(theirs) for page in pages)


USES = """
    def first():
        import habana_frameworks.torch.new_module

    def second():
        found = package().hpu.metrics.metric_global(name)
        return None if found is None else dict(found.stats())

    def third(x):
        from habana_frameworks.torch.distributed import hccl as library

        library.start(1, rank=x)
        return getattr(package().core, "hidden")()
"""


def test_the_reader_sees_through_variables_and_getattr(tmp_path: Path) -> None:
    """What the tests above rest on."""
    source = tmp_path / "vendor.py"
    source.write_text(dedent(USES))
    found = uses(source)
    assert found.modules == {"new_module"}
    assert found.names == {
        "hpu.metrics.metric_global().stats",
        "distributed.hccl.start",
        "core.hidden",
        "hpu.metrics.metric_global",
    }
    calls = {call.name: (call.num_positional, call.keywords) for call in found.calls}
    assert calls["distributed.hccl.start"] == (1, ("rank",))
    assert calls["core.hidden"] == (0, ())
