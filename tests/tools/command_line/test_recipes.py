"""`lightning-gaudi recipes`, and what the sources say of the recipes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lightning_gaudi.tools.command_line import catalog, main
from tests.helpers.process import run_python

ROOT = Path(__file__).parents[3]
RECIPES = {
    *("bert_pretraining", "llm_finetuning", "mrpc", "t5_summarization", "text_generation"),
    "text_to_image",
}
_COSTLY = {"torch", "lightning", "transformers", "numpy", "yaml"}


def test_each_recipe_and_each_configuration_has_its_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for recipe in catalog.read_recipes():
        assert f"{recipe.name}: {recipe.summary}" in lines
        for each in recipe.configurations:
            index = lines.index(f"  {each.name}: {each.summary}")
            assert lines[index + 1] == f"      needs {each.needs}"


def test_all_recipes_say_what_they_are_and_all_configurations_what_they_need() -> None:
    found = catalog.read_recipes()
    assert {recipe.name for recipe in found} == RECIPES
    files = {
        recipe.folder / f"{each.name}.yaml" for recipe in found for each in recipe.configurations
    }
    registries = set((ROOT / "recipes").glob(f"*/{catalog.REGISTRY}"))
    assert files == set((ROOT / "recipes").rglob("*.yaml")) - registries
    for recipe in found:
        texts = [recipe.summary, *(each.summary for each in recipe.configurations)]
        texts += [each.needs for each in recipe.configurations]
        assert all(text.endswith(".") for text in texts), texts
        assert recipe.configurations[0].name == "simulated"
        kinds = [each.name.partition("/")[0] for each in recipe.configurations]
        assert kinds.count("published") >= 1
        assert kinds[::-1].index("published") < kinds[::-1].index("simulated")


def test_a_header_is_read_up_to_its_keys(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text('"""One thing. More of it.\n\nAnd more.\n"""\n')
    header = "# Do it, in\n# one go. Then rest.\n#\n# Needs: a card (or\n#   none: see there).\n#\n"
    (tmp_path / "a.yaml").write_text(header + "data:\n  # Needs: nothing\n  x: 1\n")
    (tmp_path / "bare.yaml").write_text("x: 1\n")
    recipe = catalog.read_recipe(tmp_path)
    assert recipe.summary == "One thing."
    assert recipe.configurations == (
        catalog.Configuration("a", "Do it, in one go.", "a card (or none: see there)."),
        catalog.Configuration("bare", "", ""),
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["recipse"], "There is no command 'recipse'. Did you mean recipes? There are: recipes,"),
        (["nothing"], "There is no command 'nothing'. There are: recipes, run, copy, simulate"),
        (["copy", "mrcp"], "There is no recipe 'mrcp'. Did you mean mrpc? There are: bert_"),
        (["run", "mrcp", "fit"], "There is no recipe 'mrcp'. Did you mean mrpc?"),
    ],
)
def test_what_is_not_there_is_a_line_with_the_nearest(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lightning-gaudi: {message}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["recipes", "all"], "unrecognized arguments: all\n"),
        (["recipes", "--", "all"], "unrecognized arguments after --: all\n"),
        (["copy", "mrpc", "--forec"], "unrecognized arguments: --forec\n"),
        (["simulate", "--crads=2", "--", "ls"], "--crads=2; did you mean --cards?\n"),
        ([], "the following arguments are required: COMMAND\n"),
        (["run"], "the following arguments are required: RECIPE\n"),
    ],
)
def test_wrong_words_are_said_below_the_usage(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(message)


@pytest.mark.parametrize("words", [["--help"], ["recipes"], ["run", "mrpc", "--help"]])
def test_help_and_the_list_import_nothing_that_is_slow(words: list[str]) -> None:
    source = """
        import contextlib, sys
        from lightning_gaudi.tools.command_line import main
        with contextlib.suppress(SystemExit):
            main(sys.argv[1:])
        print({name.split(".")[0] for name in sys.modules})
    """
    modules = run_python(source, *words).stdout.splitlines()[-1]
    assert not _COSTLY & ast.literal_eval(modules)


def test_ctrl_c_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(catalog, "read_recipes", interrupted)
    assert main(["recipes"]) == 130
    assert capsys.readouterr().err == "lightning-gaudi: interrupted\n"
