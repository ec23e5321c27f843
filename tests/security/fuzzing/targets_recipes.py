"""What the recipes read: the user's text and tables, caches, checkpoints, registries."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import yaml

from recipes.bert_pretraining import cache, corpora, fill_mask, phases, prepared, tokenized
from recipes.bert_pretraining.rows import RowPlan, RowShape, write_plan
from recipes.bert_pretraining.sequences import single_sequences
from recipes.bert_pretraining.stream import StreamPlan, write_stream
from recipes.common import export, folders, prompts, published, training
from recipes.common.errors import UserError
from recipes.common.reader import Fields, open_tables
from recipes.common.tokenization import tokenizer_state, train_wordpiece
from recipes.llm_finetuning import conversations, encoding
from recipes.llm_finetuning.data import LlmData
from recipes.text_to_image import album
from recipes.text_to_image.gallery import Gallery
from recipes.text_to_image.requests import make_requests

from . import wild
from .target import Parser, WrongResultError, target
from .targets_checkpoints import _record

_COMMON, _BERT = "recipes.common", "recipes.bert_pretraining"
_LLM = "recipes.llm_finetuning"
_TEXT = "One sentence is here. Another follows it.\n\nA second document has a sentence.\n"
_CSV = 'text,label\n"a, b",0\nsecond row,1\n"two\nlines",0\n'
_TSV = "text\tlabel\na b\t0\nsecond row\t1\n"
_ROWS = [{"text": "a b", "label": 0}, {"text": "second", "label": 1}, {"text": "c", "label": 0}]
_FILES = {
    "a.csv": _CSV.encode(),
    "b.tsv": _TSV.encode(),
    "c.jsonl": b"".join(json.dumps(row).encode() + b"\n" for row in _ROWS),
    "d.json": json.dumps(_ROWS).encode(),
}


@target(
    "recipes.tables",
    *(
        f"{_COMMON}.file_diagnostics:{name}"
        for name in (
            *(
                "csv_style",
                "line_of",
                "_check_text",
                "_json_rows",
                "_records",
            ),
            *("_is_list", "_not_utf8"),
        )
    ),
    errors=(UserError,),
    num_quick=8,
)
def _tables(folder: Path) -> Parser:
    fields = Fields(texts=("text",), others=("label",))

    def damage(random: Any) -> tuple[str, bytes]:
        name = random.choice(sorted(_FILES))
        if name == "d.json" and random.random() < 0.5:
            return name, wild.json_text(random, _ROWS)
        if name == "c.jsonl" and random.random() < 0.5:
            rows = [wild.json_text(random, row) for row in _ROWS]
            return name, b"\n".join(rows)
        return name, wild.damaged_text(random, _FILES[name])

    def parse(given: tuple[str, bytes]) -> Any:
        name, content = given
        path = folder / name
        path.write_bytes(content)
        tables = open_tables("path", str(path), fields, held_out_share=0.0)
        for table in tables.values():
            table.check()
        return [(row.place, row.text("text")) for row in tables["train"]]

    parse(("a.csv", _FILES["a.csv"]))  # imports what it needs
    return Parser(damage, parse)


@target(
    "recipes.parquet",
    errors=(UserError,),
    num_quick=8,
)
def _parquet(folder: Path) -> Parser:
    import pyarrow
    import pyarrow.parquet

    path = folder / "a.parquet"
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(_ROWS), buffer)
    seed = buffer.getvalue()

    def parse(given: bytes) -> Any:
        path.write_bytes(given)
        tables = open_tables("path", str(path), Fields(texts=("text",)), held_out_share=0.0)
        return [row.text("text") for row in tables["train"]]

    parse(seed)  # imports what it needs
    return Parser(lambda random: wild.damaged_bytes(random, seed), parse)


@target(
    "recipes.corpora",
    f"{_BERT}.corpora:open_corpus",
    f"{_BERT}.corpora:Corpus.__iter__",
    errors=(UserError,),
    num_quick=8,
)
def _corpora(folder: Path) -> Parser:
    path = folder / "text.txt"

    def parse(given: bytes) -> Any:
        path.write_bytes(given)
        return list(corpora.open_corpus("path", str(path)))

    parse(_TEXT.encode())  # imports what it needs
    return Parser(lambda random: wild.damaged_text(random, _TEXT.encode()), parse)


_CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "Because."},
]


@target("recipes.conversations", f"{_LLM}.conversations:_list", errors=(UserError,), num_quick=8)
def _conversations(folder: Path) -> Parser:
    path = folder / "train.jsonl"
    rows: list[Any] = [{"messages": _CHAT}, {"messages": json.dumps(_CHAT)}]

    def parse(given: tuple[int, bytes]) -> Any:
        number, content = given
        path.write_bytes(content + b"\n" + json.dumps(rows[number]).encode())
        tables = conversations.open_conversations(
            "path",
            str(path),
            objective="sft",
            subset=None,
            columns=None,
            held_out_share=0.0,
            seed=0,
        )
        return [row.messages for row in conversations.read_conversations(tables["train"])]

    def damage(random: Any) -> tuple[int, bytes]:
        number = random.randrange(len(rows))
        if random.random() < 0.5:
            return number, wild.json_text(random, rows[number])
        return number, wild.damaged_text(random, json.dumps(rows[number]).encode())

    parse((0, json.dumps(rows[0]).encode()))  # imports what it needs
    return Parser(damage, parse)


@target(
    "recipes.chat_template", f"{_LLM}.data:LlmData._set_template", errors=(UserError,), num_quick=8
)
def _chat_template(folder: Path) -> Parser:
    path, tokenizer = folder / "template.jinja", _tokenizer()
    talk = conversations.Conversation(tuple(conversations.Message(**each) for each in _CHAT))
    data = SimpleNamespace(hparams={"chat_template": str(path)})

    def parse(given: bytes) -> Any:
        path.write_bytes(given)
        LlmData._set_template(data, tokenizer)  # type: ignore[arg-type]
        return encoding.Template(tokenizer).text(talk)

    seed = encoding.CHATML.encode()
    return Parser(lambda random: wild.damaged_text(random, seed), parse)


@target("recipes.prompts", errors=(UserError,), num_quick=8)
def _prompts(folder: Path) -> Parser:
    path = folder / "prompts.txt"

    def parse(given: bytes) -> Any:
        path.write_bytes(given)
        return prompts.given_prompts(None, str(path))

    parse(b"Once upon a time")  # imports what it needs
    return Parser(
        lambda random: wild.damaged_text(random, b"Once upon a time\n\nA red seven\n"), parse
    )


def _tokenizer() -> Any:
    return train_wordpiece([["one sentence is here", "another one follows"]] * 4, 60)


@target(
    "recipes.fill_mask",
    f"{_BERT}.fill_mask:MaskedLines.__init__",
    errors=(UserError,),
)
def _fill_mask(folder: Path) -> Parser:
    path, tokenizer, shape = folder / "lines.txt", _tokenizer(), RowShape(16, 3, 2)

    def parse(given: bytes) -> Any:
        path.write_bytes(given)
        return [row["num_tokens"] for row in fill_mask.MaskedLines(str(path), tokenizer, shape)]

    seed = b"one [MASK] is here\n\nanother [MASK] follows [MASK]\n"
    return Parser(lambda random: wild.damaged_text(random, seed), parse)


@target("recipes.cache", f"{_BERT}.cache:_about", errors=())
def _cache(folder: Path) -> Parser:
    """A list that is none, or names what is elsewhere, is as good as no folder."""
    cached, outside = folder / "cached", folder / "outside"
    cached.mkdir()
    outside.write_bytes(b"secret")
    (cached / "tokens.uint16").write_bytes(b"1234")
    seed = {"sizes": {"tokens.uint16": 4}, "made_from": {"format": 1}}

    def damage(random: Any) -> bytes:
        if random.random() < 0.1:
            name = random.choice((str(outside), "../outside", "x" * 5000, "\0"))
            return json.dumps({"sizes": {name: 6}}).encode()
        return wild.json_text(random, seed)

    def parse(given: bytes) -> Any:
        (cached / "complete.json").write_bytes(given)
        return cache._is_complete(cached)

    def check(given: bytes, found: Any) -> None:
        if found and any("outside" in name for name in json.loads(given)["sizes"]):
            raise WrongResultError("a file outside the folder completes it")

    return Parser(damage, parse, check)


_ARRAYS = ("tokens.uint16", "sentence_starts.int64", "document_starts.int64")


def _write_corpus(folder: Path) -> tokenized.TokenizedCorpus:
    folder.mkdir()
    tokenized.write_tokens([["one sentence is here", "another one"]] * 12, _tokenizer(), folder)
    return tokenized.TokenizedCorpus.open(folder)


def _renamed(random: Any, name: str) -> str:
    """An array's file whose suffix says something else of what is in it."""
    if random.random() < 0.6:
        return name
    stem, suffixes = name.split(".")[0], ("object", "O", "V9999", "S0", "datetime64", "float64")
    return (
        f"{stem}.{random.choice((*suffixes, 'int8', 'x', '', 'U1000000', 'int64,object', 'a,a'))}"
    )


def _one_damaged(random: Any, files: dict[str, bytes]) -> tuple[str, str, bytes]:
    """The name of one of the files, another name or the same, and its content, damaged or not."""
    name = random.choice(sorted(files))
    content = wild.damaged_bytes(random, files[name]) if random.random() < 0.7 else files[name]
    return name, _renamed(random, name), content


def _write_all(files: dict[str, bytes], given: tuple[str, str, bytes], work: Path) -> None:
    """Write all files, and in the place of one of them what `_one_damaged` gave."""
    old, new, content = given
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    for name, data in {**files, old: content}.items():
        (work / (new if name == old else name)).write_bytes(data)


@target("recipes.tokenized", f"{_BERT}.tokenized:open_array", errors=(ValueError, UserError))
def _tokenized(folder: Path) -> Parser:
    """Arrays of tokens, whatever their names and contents: no memory is read that is not theirs."""
    seed, work = folder / "seed", folder / "work"
    corpus = _write_corpus(seed)
    files = {each.name: each.read_bytes() for each in seed.iterdir()}
    documents = np.arange(corpus.num_documents)

    def parse(given: tuple[str, str, bytes]) -> Any:
        _write_all(files, given, work)
        found = tokenized.TokenizedCorpus.open(work)
        return found.tokens.sum(), found.num_documents, len(documents)

    return Parser(lambda random: _one_damaged(random, files), parse)


@target("recipes.plans", errors=(ValueError, UserError))
def _plans(folder: Path) -> Parser:
    """The rows and streams that are planned in such arrays."""
    corpus, seed, work = _write_corpus(folder / "corpus"), folder / "seed", folder / "work"
    seed.mkdir()
    documents = np.arange(corpus.num_documents)
    write_plan(single_sequences(corpus, documents, 8), RowShape(8, 2, 2), False, seed, "train")
    write_stream(corpus, documents, None, seed, "stream")
    files = {each.name: each.read_bytes() for each in seed.iterdir()}

    def parse(given: tuple[str, str, bytes]) -> Any:
        _write_all(files, given, work)
        return len(RowPlan.open(work, "train")), len(StreamPlan.open(corpus, work, "stream", 8))

    return Parser(lambda random: _one_damaged(random, files), parse)


@target(
    "recipes.prepared",
    f"{_BERT}.prepared:prepare",
    f"{_BERT}.prepared:_read_tokenizer",
    f"{_COMMON}.tokenization:_check_token_ids",
    errors=(UserError, ValueError, OSError),
)
def _prepared(folder: Path) -> Parser:
    """A tokenizer in a cache that somebody has changed."""
    text, root = folder / "text.txt", folder / "cache"
    text.write_text(
        "\n\n".join(f"One sentence {n} is here. Another one follows." for n in range(30))
    )
    corpus = corpora.open_corpus("path", str(text))
    settings = prepared.Settings(60, RowShape(16, 3, 2), False, 0.1, 0)
    prepared.prepare(corpus, None, settings, root)
    (path,) = root.glob("*/tokenizer.json")
    seed = json.loads(path.read_text())
    backend = json.loads(seed["tokenizer"])

    def damage(random: Any) -> bytes:
        if random.random() < 0.5:
            state = {**seed, "tokenizer": wild.json_text(random, backend).decode(errors="replace")}
            return json.dumps(state).encode()
        return wild.json_text(random, seed)

    def parse(given: bytes) -> Any:
        path.write_bytes(given)
        listed = path.with_name("complete.json")
        about = json.loads(listed.read_text())
        about["sizes"]["tokenizer.json"] = len(given)
        listed.write_text(json.dumps(about))
        return prepared.prepare(corpus, None, settings, root).tokenizer

    return Parser(damage, parse)


@target("recipes.phases", f"{_BERT}.phases:_read", errors=(UserError,), num_quick=13)
def _phases(folder: Path) -> Parser:
    path = folder / "a.ckpt"
    buffer = io.BytesIO()
    torch.save({"state_dict": {"w": torch.ones(2)}, "epoch": 1, "a": [None, 1.5]}, buffer)
    seed = buffer.getvalue()

    def parse(given: bytes) -> Any:
        path.unlink(missing_ok=True)
        path.write_bytes(given)
        return phases._read(str(path))

    return Parser(lambda random: wild.damaged_zip(random, seed, _record), parse)


@target(
    "recipes.export",
    f"{_COMMON}.export:read_checkpoint",
    f"{_COMMON}.export:_model",
    errors=(UserError,),
    num_quick=8,
)
def _export(folder: Path) -> Parser:
    """A checkpoint whose class, configuration, weights or tokenizer are wrong."""
    from transformers import BertConfig, BertForMaskedLM

    path = folder / "a.ckpt"
    config = BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=8,
    )
    model = BertForMaskedLM(config)
    good = {
        training.CONFIG_KEY: config.to_json_string(),
        training.CLASS_KEY: "BertForMaskedLM",
        "state_dict": {f"model.{name}": value for name, value in model.state_dict().items()},
        "data": tokenizer_state(_tokenizer()),
        "datamodule_hyper_parameters": {"tokenizer": None},
    }
    buffer = io.BytesIO()
    torch.save(good, buffer)
    seed = buffer.getvalue()

    def damage(random: Any) -> bytes:
        if random.random() < 0.3:
            return wild.damaged_zip(random, seed, _record)
        state: dict[str, Any] = dict(good)
        name = random.choice(sorted(state))
        if name == training.CONFIG_KEY:
            config_ = wild.json_text(random, json.loads(good[name])).decode(errors="replace")
            state[name] = config_
        elif name == training.CLASS_KEY:
            state[name] = random.choice(
                ("AutoTokenizer", "pipeline", "x", "utils", wild.value(random, 1))
            )
        elif name == "data":
            state[name] = random.choice((None, {}, wild.document(random, good[name])))
        else:
            state[name] = random.choice(
                (None, {}, {"model.x": torch.ones(1)}, wild.value(random, 1))
            )
        made = io.BytesIO()
        torch.save(state, made)
        return made.getvalue()

    def parse(given: bytes) -> Any:
        path.write_bytes(given)
        keys = (training.CONFIG_KEY, training.CLASS_KEY, "state_dict")
        content = export.read_checkpoint(path, keys)
        return export._model(content), export.tokenizer_of(content)

    return Parser(damage, parse)


@target("recipes.difference", f"{_COMMON}.training:_difference", errors=(UserError,))
def _difference(folder: Path) -> Parser:
    seed = {"hidden_size": 64, "num_layers": 2, "model_type": "bert"}

    def parse(given: bytes) -> Any:
        checkpoint = {training.CONFIG_KEY: given.decode(errors="replace")}
        return training._difference(checkpoint, {"hidden_size": 128})

    return Parser(lambda random: wild.json_text(random, seed), parse)


@target("recipes.published", f"{_COMMON}.published:read_runs", errors=(UserError,), num_quick=8)
def _published(folder: Path) -> Parser:
    """A registry that is shipped, as an installation that is damaged has it."""
    source = Path(published.__file__).parents[1] / "mrpc" / "published.yaml"
    entries = yaml.safe_load(source.read_text("utf-8"))
    name = next(iter(entries))
    seed = {name: entries[name]}
    text = yaml.safe_dump(seed).encode()

    def damage(random: Any) -> bytes:
        if random.random() < 0.5:
            return wild.json_text(random, json.loads(json.dumps(seed, default=str)))
        return wild.damaged_text(random, text)

    def parse(given: bytes) -> Any:
        (folder / "published.yaml").write_bytes(given)
        return published.read_runs(folder)

    return Parser(damage, parse)


@target(
    "recipes.predictions",
    f"{_COMMON}.folders:_read",
    "recipes.text_to_image.gallery:Gallery.close",
    errors=(UserError,),
)
def _predictions(folder: Path) -> Parser:
    """The part of another rank, cut short by a full disk or of another run."""
    path = folder / "predictions.jsonl"
    trainer: Any = SimpleNamespace(
        world_size=2,
        global_rank=0,
        is_global_zero=True,
        strategy=SimpleNamespace(
            barrier=lambda name: path.with_name(f"{path.name}.1").write_bytes(given_[0])
        ),
    )
    given_ = [b""]

    def parse(given: bytes) -> Any:
        given_[0] = given
        return folders.write_predictions(trainer, path, [(0, "a")])

    return Parser(lambda random: wild.json_text(random, [[1, '{"index": 1}'], [3, "b"]]), parse)


@target("recipes.pictures", "recipes.text_to_image.album:_resized", num_quick=8)
def _pictures(folder: Path) -> Parser:
    """Pictures of a gallery, which a grid shows."""
    requests = make_requests(["a red seven"], (), 1, [0])
    gallery = Gallery(folder)
    gallery.hang(requests, np.zeros((1, 3, 8, 8), np.float32))
    path = folder / album.file_name(0)
    seed = path.read_bytes()

    def parse(given: bytes) -> Any:
        path.write_bytes(given)
        return album.save_grid(folder, requests)

    return Parser(lambda random: wild.damaged_bytes(random, seed), parse)


os.environ.setdefault("HF_HUB_OFFLINE", "1")
