"""The suite runs on a simulated server of eight cards, one of which this process drives.

LIGHTNING_GAUDI_TEST_ON says otherwise, for tests/contract alone (see scripts/test_gaudi.py):
"gaudi" takes the server's own cards, "simulator" the simulated ones; both keep PT_HPU_LAZY_MODE and
LIGHTNING_GAUDI_SIMULATE_RELEASE.
"""

import gc
import os
import signal
import sys
import warnings

import pytest

_TEST_ON = os.environ.get("LIGHTNING_GAUDI_TEST_ON")

# Before torch is imported: the simulated device registers at the end of `import torch`.
if _TEST_ON == "gaudi":
    os.environ.pop("LIGHTNING_GAUDI_SIMULATE", None)
else:
    os.environ.setdefault("LIGHTNING_GAUDI_SIMULATE", "8")
if _TEST_ON is None:
    os.environ.pop("PT_HPU_LAZY_MODE", None)
    os.environ.pop("LIGHTNING_GAUDI_SIMULATE_RELEASE", None)
# Tests that are about compiling say so: others need not wait for the compiler.
os.environ.setdefault("LIGHTNING_GAUDI_COMPILE", "none")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("LIGHTNING_GAUDI_SIMULATE_SERVER", None)
# Started in the background or by nohup, processes ignore Ctrl-C, and so would those of the tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_GIVEN = set(os.environ)

# Activates the simulator, so that test modules may import habana_frameworks before torch.
import torch  # noqa: E402

# Once asked whether there is an HPU, transformers replaces torch.scatter and others by functions of
# Python that TorchScript cannot compile. It compiles these decompositions, for forward mode, when a
# test first needs them: before that, whichever tests came earlier.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, of its TorchScript
    import torch._decomp.decompositions_for_jvp

# The vendor's package sets them when it is imported: the programs that tests start would all meet
# at the same port. And the simulator names its server: they have one of their own, since a test may
# have taken a card in this process.
for _name in {"MASTER_ADDR", "MASTER_PORT", "LIGHTNING_GAUDI_SIMULATE_SERVER"} - _GIVEN:
    os.environ.pop(_name, None)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collecting makes a million objects that stay: to look for garbage among them, over and over,
    takes a sixth of its time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_itemcollected(item):
    """A test that `slow_but` marks is slow, but for the cases whose ids it names."""
    marker = item.get_closest_marker("slow_but")
    if marker is not None and item.callspec.id not in marker.args:
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """A case that `slow_but` names and that is not there would leave all of them slow."""
    if any("::" in each for each in config.args):
        return
    cases = {}
    for item in items:
        if (marker := item.get_closest_marker("slow_but")) is not None:
            test = item.nodeid.partition("[")[0]
            cases.setdefault(test, (set(marker.args), set()))[1].add(item.callspec.id)
    for test, (named, found) in cases.items():
        if missing := named - found:
            raise pytest.UsageError(f"{test}: slow_but names cases that are not there: {missing}")


def pytest_collection_finish():
    """What has been imported and collected stays: no test, and no fork of one, looks for garbage
    in it.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _environment_is_restored():
    """What Lightning and the strategies set for a run, such as MASTER_PORT, ends with its test."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _attention_is_fused_for_one_test():
    """A Trainer on the HPU fuses attention from then on, and what cannot be is said once."""
    yield
    switch = sys.modules.get("lightning_gaudi.attention.switch")
    if switch is not None:
        switch._default = False
        switch._warned.clear()


@pytest.fixture(autouse=True)
def _process_groups_end_with_their_test():
    """A strategy that shards connects one rank as well, and Lightning destroys no group."""
    before = torch.distributed.is_initialized()
    yield
    if torch.distributed.is_initialized() and not before:
        torch.distributed.destroy_process_group()
