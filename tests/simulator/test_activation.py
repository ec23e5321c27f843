"""When and how a process gets its simulated HPU."""

import os
import shutil
import sys
from functools import cache
from pathlib import Path

import pytest

import lightning_gaudi
from lightning_gaudi import simulator
from lightning_gaudi.simulator import SimulatorError, activation, settings
from tests.helpers.forked import fork_python
from tests.helpers.process import run_python

_MARK = "_LIGHTNING_GAUDI_SIMULATOR_ANNOUNCED"
_ANNOUNCED = {_MARK: None}
_LINE = (
    "lightning-gaudi: HPU is simulated: 1 Gaudi 2 card of 96 GiB on this CPU; results are real, "
    "speed is not a Gaudi's."
)
_BACKWARD = """
x = torch.ones(2, 2, device="hpu", requires_grad=True)
(x @ x).sum().backward()
print(x.grad.device, x.grad.sum().item())
"""


def test_this_suite_is_simulated():
    assert simulator.is_requested()
    assert simulator.is_active()
    simulator.activate()  # again is harmless


def test_cards():
    assert [(card.key, card.device_name) for card in simulator.CARDS.values()] == [
        ("gaudi1", "GAUDI"),
        ("gaudi2", "GAUDI2"),
        ("gaudi3", "GAUDI3"),
    ]
    assert [card.memory_gib for card in simulator.CARDS.values()] == [32, 96, 128]
    gib = [card.memory_bytes / 2**30 for card in simulator.CARDS.values()]
    assert gib == [32, pytest.approx(94.62), 128]


@pytest.mark.parametrize("value", ["0", "9", "-1", "two", "1.0", "1,2", "²"])
def test_a_wrong_number_of_cards_is_an_error_naming_the_variable(monkeypatch, value):
    monkeypatch.setenv("LIGHTNING_GAUDI_SIMULATE", value)
    message = f"LIGHTNING_GAUDI_SIMULATE='{value}' is no number of cards.*1 to 8"
    with pytest.raises(SimulatorError, match=message):
        simulator.activate()


def test_an_unknown_card_is_an_error_naming_the_variable(monkeypatch):
    monkeypatch.setenv("LIGHTNING_GAUDI_SIMULATE_CARD", "gaudi4")
    message = "LIGHTNING_GAUDI_SIMULATE_CARD='gaudi4' is no card.*gaudi1, gaudi2, gaudi3"
    with pytest.raises(SimulatorError, match=message):
        simulator.activate()


@pytest.mark.parametrize("value", [None, ""])
def test_activating_unasked_is_an_error(monkeypatch, value):
    monkeypatch.delenv("LIGHTNING_GAUDI_SIMULATE")
    if value is not None:
        monkeypatch.setenv("LIGHTNING_GAUDI_SIMULATE", value)
    assert not simulator.is_requested()
    with pytest.raises(SimulatorError, match="LIGHTNING_GAUDI_SIMULATE is not set"):
        simulator.activate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LIGHTNING_GAUDI_SIMULATE", "9"),
        pytest.param("LIGHTNING_GAUDI_SIMULATE_CARD", "v5", marks=pytest.mark.slow),
    ],
)
def test_a_wrong_value_ends_import_torch(name, value):
    result = run_python("import torch", env={name: value}, check=False)
    assert result.returncode == 1
    last_line = result.stderr.splitlines()[-1]
    error = "lightning_gaudi.SimulatorDidNotStartError"
    assert last_line.startswith(f"{error}: {name}='{value}' is no")


def test_import_torch_alone_activates_and_announces_on_stderr():
    result = run_python("import torch" + _BACKWARD, env=_ANNOUNCED)
    assert result.stdout == "hpu:0 16.0\n"
    assert result.stderr == _LINE + "\n"


_OUR_SWITCH, _SWITCH_OF_TORCH = "LIGHTNING_GAUDI_AUTOLOAD", "TORCH_DEVICE_BACKEND_AUTOLOAD"
_OURS_FIRST, _TORCH_FIRST = "import lightning_gaudi, torch", "import torch, lightning_gaudi"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kill_switch", "imports"),
    [
        (_OUR_SWITCH, _OURS_FIRST),
        pytest.param(_OUR_SWITCH, _TORCH_FIRST, marks=pytest.mark.slow),
        pytest.param(_SWITCH_OF_TORCH, _OURS_FIRST, marks=pytest.mark.slow),
        # And torch first without its switch: see what asks torch early.
    ],
)
def test_without_autoload_our_import_activates(kill_switch, imports):
    result = run_python(imports + _BACKWARD, env={kill_switch: "0"})
    assert result.stdout == "hpu:0 16.0\n"


def test_the_announcement_counts_cards_and_is_made_once(monkeypatch, capsys):
    monkeypatch.setenv("LIGHTNING_GAUDI_SIMULATE", "8")
    monkeypatch.setenv("LIGHTNING_GAUDI_SIMULATE_CARD", "gaudi3")
    monkeypatch.delenv(_MARK)
    for _ in range(2):  # the second time as a child, which inherits the environment
        activation._announce(simulator.read_settings())
    assert capsys.readouterr().err.count("8 Gaudi 3 cards of 128 GiB") == 1


@pytest.mark.slow
def test_a_run_announces_once_with_workers_ranks_and_children():
    source = """
import os, subprocess, sys, torch
from torch.utils.data import DataLoader

def rank(index):
    assert torch.accelerator.current_accelerator().type == "hpu"

if __name__ == "__main__":
    for context in ("fork", "spawn"):
        loader = DataLoader([1, 2], num_workers=1, multiprocessing_context=context)
        assert [int(batch) for batch in loader] == [1, 2]
    torch.multiprocessing.spawn(rank, nprocs=1)
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
"""
    script = (
        f"import runpy, sys, pathlib, tempfile\nsource = {source!r}\n"
        + """
path = pathlib.Path(tempfile.mkdtemp()) / "run.py"
path.write_text(source)
runpy.run_path(str(path), run_name="__main__")
"""
    )
    result = run_python(script, env=_ANNOUNCED)
    assert result.stderr.count("HPU is simulated") == 1


@cache
def _run_without_the_request():
    source = """
        import sys, torch, lightning_gaudi
        print(torch.accelerator.current_accelerator(), "_hpu_sim" in sys.modules)
        print(any("stand_in" in entry for entry in sys.path))
        from lightning_gaudi import simulator
        for function in (
            simulator.collective_stats, simulator.host_syncs, simulator.reset_statistics
        ):
            try:
                function()
            except simulator.SimulatorError as error:
                print(error)
    """
    return run_python(source, env={"LIGHTNING_GAUDI_SIMULATE": None})


@pytest.mark.slow
def test_without_the_request_there_is_no_hpu():
    result = _run_without_the_request()
    assert result.stdout.splitlines()[:2] == ["None False", "False"]
    assert result.stderr == ""


@pytest.mark.slow
def test_statistics_need_the_simulator():
    errors = _run_without_the_request().stdout.splitlines()[2:]
    message = "is not active, so it has counted nothing. Set LIGHTNING_GAUDI_SIMULATE"
    assert [message in error for error in errors] == [True] * 3


def test_importing_the_simulator_does_not_import_torch():
    source = "import sys, lightning_gaudi.simulator; print('torch' in sys.modules)"
    assert run_python(source).stdout == "False\n"


@pytest.mark.parametrize("has_init", [True, False])
def test_a_real_vendor_package_is_found(tmp_path, monkeypatch, has_init):
    package = tmp_path / "habana_frameworks" / "torch"
    package.mkdir(parents=True)
    if has_init:
        (package.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    message = f"X asks for the simulated HPU, but .* is installed in {package.parent}"
    with pytest.raises(SimulatorError, match=message):
        activation.refuse_vendor("X")


def test_the_stand_in_of_another_copy_is_no_vendor_package(tmp_path, monkeypatch):
    package = tmp_path.joinpath("lightning_gaudi", "simulator", "stand_in", "habana_frameworks")
    package.joinpath("torch").mkdir(parents=True)
    monkeypatch.syspath_prepend(package.parent)
    activation.refuse_vendor("X")


@pytest.mark.slow
def test_a_clone_of_an_installed_package_uses_what_is_its_own(tmp_path):
    package = Path(lightning_gaudi.__file__).parent
    shutil.copytree(package, tmp_path / "lightning_gaudi")
    source = """
        import torch, lightning_gaudi, habana_frameworks.torch
        print(torch.ones(2, device="hpu").sum().item())
        print(lightning_gaudi.__file__)
        print(*habana_frameworks.__path__)
    """
    path = os.pathsep.join([str(tmp_path), str(settings.STAND_IN)])
    said = run_python(source, env={"PYTHONPATH": path}, cwd=tmp_path).stdout.splitlines()
    assert said[0] == "2.0"
    assert [Path(each).is_relative_to(tmp_path) for each in said[1:]] == [True, True]


def test_a_real_vendor_package_beside_is_an_error(tmp_path):
    package = tmp_path / "habana_frameworks" / "torch"
    package.mkdir(parents=True)
    result = run_python("import torch", env={"PYTHONPATH": str(tmp_path)}, check=False)
    assert result.returncode == 1
    assert (
        "SimulatorError: LIGHTNING_GAUDI_SIMULATE=1 asks for the simulated HPU, but the vendor's "
        f"habana_frameworks is installed in {package.parent}." in result.stderr
    )


@pytest.mark.slow
def test_the_stand_in_on_the_path_is_no_vendor_package():
    source = "import habana_frameworks.torch as ht, torch; ht.core.mark_step()" + _BACKWARD
    env = {"PYTHONPATH": str(settings.STAND_IN)}
    assert run_python(source, env=env).stdout == "hpu:0 16.0\n"


@pytest.mark.slow
def test_gaudi_code_runs_after_import_torch():
    source = (
        """
import torch
import habana_frameworks.torch.core as htcore
htcore.mark_step()
"""
        + _BACKWARD
    )
    for lazy in (None, "1"):
        assert fork_python(source, env={"PT_HPU_LAZY_MODE": lazy}).stdout == "hpu:0 16.0\n"


@pytest.mark.slow_but("import habana_frameworks.torch as ht-1")
@pytest.mark.parametrize("lazy", ["0", "1"])
@pytest.mark.parametrize(
    "first",
    [
        "import habana_frameworks.torch as ht",
        "import habana_frameworks.torch.core; import habana_frameworks.torch as ht",
        "from habana_frameworks import torch as ht",
        "import importlib.util; importlib.util.find_spec('habana_frameworks.torch')\n"
        "import habana_frameworks.torch as ht",
    ],
)
def test_gaudi_code_runs_before_import_torch(first, lazy):
    source = f"""
{first}
import habana_frameworks, sys, torch
assert habana_frameworks.torch is sys.modules["habana_frameworks.torch"] is ht
{_BACKWARD}"""
    result = run_python(source, env={"PYTHONPATH": None, "PT_HPU_LAZY_MODE": lazy})
    assert result.stdout == "hpu:0 16.0\n"


def test_the_vendors_name_is_free_where_the_simulator_is_not_asked_for():
    """Neither without the variable nor with the plugin turned off."""
    source = "import sys; print([name for name in sys.path if 'stand_in' in name])"
    for env in ({"LIGHTNING_GAUDI_SIMULATE": None}, {"LIGHTNING_GAUDI_AUTOLOAD": "0"}):
        assert run_python(source, env={"PYTHONPATH": None} | env).stdout == "[]\n"


@pytest.mark.slow
def test_activation_after_a_first_backward_warns_and_still_trains():
    source = (
        """
import torch
y = torch.ones(1, requires_grad=True)
y.sum().backward()
import lightning_gaudi
"""
        + _BACKWARD
    )
    result = run_python(source, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert result.stdout == "hpu:0 16.0\n"
    assert "came after this process's first backward()" in result.stderr


@pytest.mark.slow
def test_backward_runs_in_the_thread_that_calls_it():
    source = """
import threading
import torch
def threads_of_backward():
    seen = []
    x = torch.ones(2, device="hpu", requires_grad=True)
    main = threading.main_thread()
    x.register_hook(lambda grad: seen.append(threading.get_ident() == main.ident))
    (x * 2).sum().backward()
    return seen, x.grad.tolist()
print(*threads_of_backward())
others = threading.Thread(target=lambda: print(*threads_of_backward()))
others.start()
others.join()
"""
    assert fork_python(source).stdout == "[True] [2.0, 2.0]\n[False] [2.0, 2.0]\n"


@pytest.mark.slow
def test_activation_after_another_early_question_needs_no_warning():
    source = (
        """
import torch
torch.ones(1).is_pinned(), torch.accelerator.is_available()
import lightning_gaudi
"""
        + _BACKWARD
    )
    result = run_python(source, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert result.stdout == "hpu:0 16.0\n"
    assert result.stderr == ""


def test_a_failed_activation_is_not_forgotten(monkeypatch):
    monkeypatch.setattr(activation, "_status", "off")
    monkeypatch.setattr(activation, "_start", lambda settings: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            simulator.activate()
        assert not simulator.is_active()


def test_torch_keeping_another_accelerator_is_an_error(monkeypatch):
    import torch

    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda *args: torch.device("cuda")
    )
    with pytest.raises(SimulatorError, match="keeps cuda as its accelerator"):
        activation._start(simulator.read_settings())


def test_a_device_that_refuses_is_an_error_with_its_cause(monkeypatch):
    class Device:
        def hide_accelerators(self):
            raise RuntimeError("A GPU is visible.")

    monkeypatch.setattr(activation.build, "load", Device)
    with pytest.raises(SimulatorError, match=r"cannot start: A GPU is visible\."):
        activation._start(simulator.read_settings())


def test_the_memory_limit_can_be_set():
    import torch

    device = sys.modules["_hpu_sim"]
    before = device.memory_stats()["Limit"]
    try:
        simulator.set_memory_limit(device.memory_stats()["InUse"] + 2**20)
        with pytest.raises(RuntimeError, match="HPU out of memory"):
            torch.empty(2**21, dtype=torch.uint8, device="hpu")
    finally:
        simulator.set_memory_limit(before)
    torch.empty(2**21, dtype=torch.uint8, device="hpu")


def test_a_memory_limit_must_be_positive():
    with pytest.raises(ValueError, match="must be positive, got 0 bytes"):
        simulator.set_memory_limit(0)


def test_a_memory_limit_needs_the_simulator(monkeypatch):
    monkeypatch.setattr(activation, "_status", "off")
    with pytest.raises(SimulatorError, match="not active, so it has no memory limit"):
        simulator.set_memory_limit(1)
