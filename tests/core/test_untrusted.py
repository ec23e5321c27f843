"""Text, names and JSON that somebody else wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_gaudi.untrusted import check_depth, parse_json, path_inside, printable


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[2Jgone",
        "a\rb",
        "a\nlightning-gaudi: checkpoint verified.",
        "\u202egnp.exe",
        "\x9b31m",
        "\ud800",
        "a\u2028b",
        "\u200bhidden",
        "\U000e0041",
    ],
)
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    shown.encode()


def test_what_people_write_stays() -> None:
    assert printable("Modèle d'été, 模型: a/b c") == "Modèle d'été, 模型: a/b c"
    assert printable("File x\n\tline", lines=True) == "File x\n\tline"
    assert printable("a" * 12, max_chars=10) == "a" * 10 + "... (2 characters more)"


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../a", "a/../../b", "", ".", "a\0b", "link", "link/x", 3, None, "x" * 5000],
)
def test_a_name_does_not_lead_out_of_its_folder(tmp_path: Path, name: object) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="is not "):
        path_inside(folder, name)


def test_a_name_within_a_folder_that_is_a_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "folder" / "part").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "folder")
    assert path_inside(tmp_path / "linked", "part/x") == tmp_path / "linked" / "part" / "x"


def test_what_lies_in_many_places_is_looked_at_once() -> None:
    """As YAML's anchors have it; and in itself, where there is no end."""
    found: list[object] = []
    for _ in range(40):
        found = [found, found, {"a": found}]
    check_depth(found)
    found.append(found)
    with pytest.raises(ValueError, match="nested too deeply"):
        check_depth(found)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[" * 300 + "]" * 300, "NaN", "[1e999]", "-Infinity", "{", b"\xff"]
)
def test_json_that_is_none_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_json(text)
