import sys

import pytest

from lightning_gaudi.data import embedded_documents, embedded_fingerprint

MODULE = '''
"""The module speaks of animals in general. It has two sentences in its text."""

class Cat:
    """Cats sleep for the larger part of the day."""

    def purr(self):
        """The purr of a cat calms the people who hear it. This sentence has no use."""

def bark():
    """Cats sleep for the larger part of the day."""

raise RuntimeError("the corpus is read, never imported")
'''
CALL = """
add_docstr(torch.abs, r'''abs(input) -> Tensor

Computes the absolute value of each element in the input. The result is a new tensor.
'''.format(**common))
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "animals_for_test"
    (folder / "tests").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "zoo.py").write_text(MODULE)
    (folder / "native.py").write_text(CALL)
    (folder / "broken.py").write_text('"""This is not a Python file at all. Not even close."""\n(')
    (folder / "tests" / "test_zoo.py").write_text('"""Text of the tests is left out of it all."""')
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder.name


def _read(package, tmp_path):
    return embedded_documents([package], standard_library=False, cache_dir=tmp_path / "cache")


def test_documents_are_grouped_and_sentences_unique(package, tmp_path):
    documents = _read(package, tmp_path)
    assert documents == [
        [
            "Computes the absolute value of each element in the input.",
            "The result is a new tensor.",
        ],
        [
            "The module speaks of animals in general.",
            "It has two sentences in its text.",
        ],
        [
            "Cats sleep for the larger part of the day.",
            "The purr of a cat calms the people who hear it.",
            "This sentence has no use.",
        ],
    ]


def test_nothing_is_imported(package, tmp_path):
    _read(package, tmp_path)
    assert package not in sys.modules


def test_the_second_call_reads_the_cache(package, tmp_path):
    first = _read(package, tmp_path)
    (tmp_path / package / "zoo.py").unlink()
    assert _read(package, tmp_path) == first


def test_a_damaged_cache_is_built_again(package, tmp_path):
    first = _read(package, tmp_path)
    (cache,) = (tmp_path / "cache").iterdir()
    cache.write_text(cache.read_text()[:40])
    assert _read(package, tmp_path) == first
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [cache.name]


def test_a_cache_that_cannot_be_written_is_done_without(package, tmp_path):
    whole = embedded_documents([package], standard_library=False, cache_dir=tmp_path)
    file = tmp_path / "file"
    file.touch()
    with pytest.warns(UserWarning, match=r"cannot be kept in .*file/corpus \(.*GAUDI_CACHE_DIR"):
        found = embedded_documents([package], standard_library=False, cache_dir=file / "corpus")
    assert found == whole


def test_default_cache_is_in_the_configured_folder(package, tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTNING_GAUDI_CACHE_DIR", str(tmp_path / "configured"))
    embedded_documents([package], standard_library=False)
    assert [path.suffix for path in (tmp_path / "configured" / "corpus").iterdir()] == [".json"]


@pytest.mark.parametrize("name", ["no_such_package", "json.tool", "sys"])
def test_a_package_that_cannot_be_read_is_named(name, tmp_path):
    with pytest.raises(ValueError, match=f"cannot read the package '{name}'.*Install it"):
        embedded_documents([name], cache_dir=tmp_path)


def test_the_standard_library_and_the_topics_of_its_help_are_read(package, tmp_path, monkeypatch):
    """With a small folder in place of the standard library's."""
    documents = _read(package, tmp_path)
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path / package)})
    found = embedded_documents([], cache_dir=tmp_path / "cache")
    assert found[: len(documents)] == documents
    assert len(found) > len(documents) + 50


@pytest.mark.slow
def test_the_standard_library_gives_text(tmp_path):
    documents = embedded_documents([], cache_dir=tmp_path)
    assert len(documents) > 500
    assert sum(map(len, documents)) > 5000


def test_the_fingerprint_names_the_cached_text(package, tmp_path):
    _read(package, tmp_path)
    key = embedded_fingerprint([package], standard_library=False)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [f"embedded-{key}.json"]
    assert embedded_fingerprint([package]) != key
