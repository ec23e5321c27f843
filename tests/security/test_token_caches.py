"""Files of a recipe's cache that somebody else has written."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from recipes.bert_pretraining.cache import _LIST, cached_folder
from recipes.bert_pretraining.corpora import open_corpus
from recipes.bert_pretraining.packed import PackedDataset, Vocabulary
from recipes.bert_pretraining.prepared import Settings, prepare
from recipes.bert_pretraining.rows import RowPlan, RowShape
from recipes.bert_pretraining.stream import StreamPlan
from recipes.bert_pretraining.tokenized import TokenizedCorpus, open_array
from recipes.common.errors import UserError
from recipes.common.tokenization import tokenizer_from_state, tokenizer_state, train_wordpiece

SHAPE = RowShape(48, 8, 4)
BIG = 2**62


@pytest.fixture(scope="module", name="text")
def _text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    documents = [
        f"The cat number {n} sleeps in the garden. It purrs. The dog barks at {n} birds."
        for n in range(40)
    ]
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("\n\n".join(documents))
    return path


def _folders(text: Path, root: Path, kind: str) -> tuple[Path, Path]:
    settings = Settings(
        120,
        SHAPE,
        kind == "pairs",
        0.1,
        seed=0,
        documents="concatenated" if kind == "stream" else "separate",
    )
    prepare(open_corpus("path", str(text)), None, settings, root)
    rows = next(path for path in root.iterdir() if path.is_dir() and "-rows-" in path.name)
    tokens = next(path for path in root.iterdir() if path.is_dir() and path != rows)
    return tokens, rows


def _read_all(tokens: Path, rows: Path, kind: str) -> None:
    """What training reads, of all rows and of two epochs."""
    corpus = TokenizedCorpus.open(tokens)
    plan: RowPlan | StreamPlan
    if kind == "stream":
        plan = StreamPlan.open(corpus, rows, "train", SHAPE.max_seq_length)
    else:
        plan = RowPlan.open(rows, "train")
    vocabulary = Vocabulary(size=120, pad=0, cls=2, sep=3, mask=4, special=(0, 1, 2, 3, 4))
    dataset = PackedDataset(corpus, plan, vocabulary, SHAPE, seed=0)
    for epoch in (0, 1):
        for row in range(len(dataset)):
            dataset[epoch, row]
    for document in range(corpus.num_documents):
        corpus.sentences_of(document)


@pytest.mark.parametrize("dtype", ["object", "O8", "U1000000", "void", "float64", "int8"])
@pytest.mark.parametrize("keeps_ours", [False, True])
def test_a_file_does_not_say_its_dtype(tmp_path: Path, dtype: str, keeps_ours: bool) -> None:
    (tmp_path / f"tokens.{dtype}").write_bytes(b"\x41" * 64)
    if keeps_ours:
        (tmp_path / "tokens.uint16").write_bytes(b"\1\0" * 32)
        assert open_array(tmp_path, "tokens").tolist() == [1] * 32
    else:
        with pytest.raises(UserError, match=r"it has 0 files of tokens, not one\. Remove that"):
            open_array(tmp_path, "tokens")


def test_sizes_that_cannot_be_are_said(tmp_path: Path) -> None:
    (tmp_path / "a.int64").write_bytes(b"\0" * 9)
    with pytest.raises(UserError, match=r"a\.int64 is no file of whole numbers of int64"):
        open_array(tmp_path, "a")
    os.mkfifo(tmp_path / "b.int64")
    with pytest.raises(UserError, match=r"b\.int64 is no file"):
        open_array(tmp_path, "b")
    for dtype in ("uint16", "uint32"):
        (tmp_path / f"c.{dtype}").write_bytes(b"\0" * 8)
    with pytest.raises(UserError, match="it has 2 files of c, not one"):
        open_array(tmp_path, "c")


def _all(value: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.full_like(array, value)


def _middle(value: int) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array[1 : max(2, len(array) - 1)] = value
        return array

    return change


CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "huge": _all(BIG),
    "negative": _all(-BIG),
    "huge within": _middle(BIG),
    "negative within": _middle(-1),
    "one beyond": lambda array: array + len(array),
    "shorter": lambda array: array[:-1],
    "empty": lambda array: array[:0],
    "longer": lambda array: np.concatenate([array, array]),
    "backwards": lambda array: array[::-1],
}


@pytest.mark.parametrize("kind", ["rows", "pairs", "stream"])
def test_indices_out_of_range_are_one_clear_error(text: Path, tmp_path: Path, kind: str) -> None:
    """Whatever is changed, all is read or one of our errors says what is wrong."""
    tokens, rows = _folders(text, tmp_path, kind)
    _read_all(tokens, rows, kind)
    names = [*tokens.glob("*_starts.int64"), *rows.glob("train_*.int64")]
    assert len(names) == (4 if kind == "stream" else 7)
    refused = []
    for path in names:
        good = path.read_bytes()
        for change in CHANGES.values():
            array = np.frombuffer(good, np.int64)
            if not len(array):
                continue
            path.write_bytes(change(array).astype(np.int64).tobytes())
            try:
                _read_all(tokens, rows, kind)
            except UserError as error:
                refused.append(str(error))
        path.write_bytes(good)
    assert len(refused) > 20
    assert all("are damaged: " in each for each in refused)


def test_tokens_beyond_the_vocabulary_are_refused(text: Path, tmp_path: Path) -> None:
    tokens, rows = _folders(text, tmp_path, "rows")
    (path,) = tokens.glob("tokens.*")
    path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(UserError, match="a token is 65535, but the vocabulary has 120"):
        _read_all(tokens, rows, "rows")


@pytest.mark.parametrize(
    "words",
    [
        *(
            "[]",
            "3",
            "null",
            '{"sizes": 3}',
            '{"sizes": {"../../x": 1}}',
            '{"sizes": {"data": "7"}}',
        ),
        *(
            '{"sizes": {"/etc/passwd": 3}}',
            "[" * 100_000,
            '{"sizes": {"a\\u0000b": 1}}',
            "\xff",
            "{}",
        ),
        *('{"sizes": []}', '{"sizes": {}}', '{"sizes": {"data": Infinity}}'),
    ],
)
def test_a_list_of_nonsense_is_no_list(tmp_path: Path, words: str) -> None:
    def make(folder: Path) -> None:
        (folder / "data").write_text("content")

    folder = cached_folder(tmp_path, "text", 0, make)
    (folder / _LIST).write_bytes(words.encode("latin1"))
    (folder / "data").write_text("changed")
    assert cached_folder(tmp_path, "text", 0, make) == folder
    assert (folder / "data").read_text() == "content"


def test_only_what_the_cache_made_is_removed_when_it_is_old(tmp_path: Path) -> None:
    """Folders of others may hold a file of the list's name."""
    victim, outside = tmp_path / "victim", tmp_path.with_name(f"{tmp_path.name}-outside")
    for folder in (victim, outside):
        folder.mkdir()
        (folder / _LIST).write_text(json.dumps({"sizes": {}, "made_from": 1}))
        (folder / "precious").touch()
    (tmp_path / "link").symlink_to(outside)

    def make(folder: Path) -> None:
        (folder / "data").write_text("content")

    old = cached_folder(tmp_path, "text", 0, make)
    for folder in (victim, outside, old):
        os.utime(folder / _LIST, (0, time.time() - 365 * 86400))
    cached_folder(tmp_path, "text", 1, make)
    assert (victim / "precious").exists()
    assert (outside / "precious").exists()
    assert not old.exists()


@pytest.mark.parametrize("is_added", [False, True])
@pytest.mark.parametrize("token_id", [2**31, 10**6, -1, "1", 1.5, None])
def test_a_token_id_takes_no_memory_for_those_before_it(token_id: object, is_added: bool) -> None:
    """Of a checkpoint, too: the library would take memory for all, or end the process."""
    state = tokenizer_state(train_wordpiece([["A cat sleeps in the garden."]], 40))
    backend = json.loads(state["tokenizer"])
    assert len(tokenizer_from_state(state)) == len(backend["model"]["vocab"])
    if is_added:
        backend["added_tokens"][0]["id"] = token_id
    else:
        backend["model"]["vocab"]["cat"] = token_id
    with pytest.raises(UserError, match="are not numbered from 0 on"):
        tokenizer_from_state({**state, "tokenizer": json.dumps(backend)})
