"""A finding names the user's line, once; the mode decides what becomes of it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lightning_gaudi.simulator import rules, settings
from lightning_gaudi.simulator.rules import table
from tests.helpers import process
from tests.helpers.process import run_python


@pytest.fixture
def warn() -> Iterator[None]:
    rules.forget_findings()
    rules.set_mode("warn")
    yield
    rules.forget_findings()
    rules.exempt(())


@pytest.fixture
def error(warn: None) -> None:
    rules.set_mode("error")


def _select(x: torch.Tensor) -> None:
    for _ in range(3):
        torch.nonzero(x)  # reported


def _select_twice(x: torch.Tensor) -> None:
    torch.nonzero(x)
    torch.nonzero(x)


def _line_of(text: str) -> int:
    return Path(__file__).read_text().splitlines().index(text) + 1


@pytest.mark.usefixtures("warn")
def test_a_line_is_reported_once_and_counted() -> None:
    x = torch.arange(4.0, device="hpu")
    with pytest.warns(rules.GaudiRuleWarning) as caught:
        _select(x)
    [warning] = caught
    line = _line_of("        torch.nonzero(x)  # reported")
    assert (warning.filename, warning.lineno) == (__file__, line)
    assert "aten::nonzero: a Gaudi waits for the number" in str(warning.message)
    assert "[nonzero-dynamic]" in str(warning.message)
    [finding] = rules.findings()
    assert (finding.file, finding.line, finding.count) == (__file__, line, 3)
    assert finding.operator == "aten::nonzero"


@pytest.mark.usefixtures("warn")
def test_two_lines_are_two_findings() -> None:
    x = torch.arange(4.0, device="hpu")
    with pytest.warns(rules.GaudiRuleWarning) as caught:
        _select_twice(x)
    assert len(caught) == 2
    assert len(rules.findings()) == 2


@pytest.mark.usefixtures("error")
def test_an_error_names_file_and_line_and_leaves_the_card_usable() -> None:
    x = torch.arange(4.0, device="hpu")
    line = _line_of("        x[x > 1]")
    place = f"{Path(__file__).name}:{line}: aten::index.Tensor: a Gaudi waits"
    with pytest.raises(rules.GaudiRuleError, match=place):
        x[x > 1]
    assert (x + 1).sum().item() == 10


@pytest.mark.usefixtures("error")
def test_an_error_in_a_backward_names_the_line_that_called_it() -> None:
    class Selects(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):  # type: ignore[no-untyped-def]
            torch.nonzero(gradient)
            return gradient

    loss = Selects.apply(torch.ones(2, device="hpu", requires_grad=True)).sum()
    with pytest.raises(rules.GaudiRuleError, match="aten::nonzero"):
        loss.backward()


def test_off_says_nothing_but_counts_waits() -> None:
    rules.set_mode("off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.nonzero(torch.ones(2, device="hpu"))
    assert rules.findings() == []


@pytest.mark.usefixtures("error")
def test_printing_a_tensor_is_no_finding() -> None:
    assert "1.0" in str(torch.tensor([1.0, 2.5], device="hpu"))


@pytest.mark.usefixtures("warn")
def test_other_ranks_keep_findings_and_do_not_repeat_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "1")
    torch.nonzero(torch.ones(2, device="hpu"))
    assert len(rules.findings()) == 1


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no mode 'loud' of rules\. Pass one of warn, error, off"):
        rules.set_mode("loud")


@pytest.mark.slow
def test_an_unknown_mode_in_the_environment_stops_the_start() -> None:
    result = run_python("import torch", env={settings.RULES: "loud"}, check=False)
    assert result.returncode != 0
    assert f"{settings.RULES}='loud' is unknown. Set it to one of warn" in result.stderr


@pytest.mark.usefixtures("error")
def test_a_refusal_is_raised_even_if_findings_only_warn() -> None:
    refusing = rules.Rule("k", rules.Verdict.REFUSED, ("*",), "has none", "Use one.", "page")
    rules.set_mode("warn")
    with pytest.raises(rules.GaudiRuleError, match=r"a Gaudi has none\. Use one\. \[k\]"):
        rules.report(refusing)


def test_the_user_s_line_is_outside_of_libraries(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.unique(x)\n"
        "Net()(torch.ones(3, device='hpu'))\n"
    )
    source = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    result = run_python(source, env={settings.RULES: "warn"})
    assert f"{script}:5: GaudiRuleWarning: aten::_unique2" in result.stderr


@pytest.mark.slow
def test_the_user_s_line_is_outside_of_what_others_have_installed(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "their_trainer"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def train(x):\n    return x.unique()\n")
    script = tmp_path / "train.py"
    script.write_text(
        f"import sys, torch\nsys.path.append({str(package.parent)!r})\n"
        "import their_trainer\ntheir_trainer.train(torch.ones(3, device='hpu'))\n"
    )
    run = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
    command = [sys.executable, "-c", run, str(script)]
    said = process.run(command, env={settings.RULES: "warn"}).stderr
    assert f"{script}:4: GaudiRuleWarning: aten::_unique2" in said
    # A project that is itself installed: the innermost of its lines.
    (package / "__main__.py").write_text(script.read_text())
    env = {settings.RULES: "warn", "PYTHONPATH": str(package.parent)}
    said = process.run([sys.executable, "-m", "their_trainer"], env=env).stderr
    assert f"{package / '__init__.py'}:2: GaudiRuleWarning" in said


def test_keys_are_found() -> None:
    assert table.find("mask-index-dynamic").verdict is rules.Verdict.DYNAMIC


@pytest.mark.usefixtures("error")
def test_rules_and_modules_can_be_exempt() -> None:
    x = torch.arange(4.0, device="hpu")
    for names in (["nonzero-dynamic"], [__name__], [__name__.partition(".")[0]]):
        rules.exempt(names)
        _select(x)
    assert not rules.findings()
    rules.exempt(["unique-dynamic", "torchmetrics", "test"])
    with pytest.raises(rules.GaudiRuleError, match="nonzero-dynamic"):
        _select(x)
    rules.exempt(["complex-refused"])
    with pytest.raises(rules.GaudiRuleError, match="complex-refused"):
        torch.zeros(2, dtype=torch.complex64, device="hpu")
    with pytest.raises(settings.SimulatorError, match="Did you mean 'nonzero-dynamic'"):
        table.check_exempt(["nonzer-dynamic"])
