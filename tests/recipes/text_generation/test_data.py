import json

import numpy as np
import pytest
from transformers import AutoTokenizer

from recipes.common.errors import UserError
from recipes.common.tokenization import train_byte_bpe
from recipes.text_generation.blocks import Blocks, to_stream
from recipes.text_generation.data import TextData
from tests.recipes.text_generation.conftest import FIXTURES, PROMPTS, VOCABULARY, small_data

pytestmark = pytest.mark.filterwarnings("ignore:.*has no .* split")


def test_each_token_but_the_first_is_predicted_once():
    blocks = Blocks(np.arange(100, 124), block_size=7)
    assert len(blocks) == 3
    labels = np.concatenate([blocks[index]["labels"] for index in range(3)])
    assert labels.tolist() == list(range(101, 122)) == blocks.predicted[1:].tolist()
    for index in range(3):
        block = blocks[index]
        assert (block["input_ids"][1:] == block["labels"][:-1]).all()


def test_documents_stand_between_ends():
    tokenizer = train_byte_bpe([["one two", "three"]], 280)
    stream = to_stream(["one two", "three"], tokenizer)
    end = tokenizer.eos_token_id
    assert stream[0] == stream[-1] == end
    assert (stream == end).sum() == 3
    assert tokenizer.decode(stream[1:-1]) == "one two</s>three"


@pytest.mark.parametrize("text", ["Straße, 北京 \t two  spaces\n", "A b. C"])
def test_a_text_is_read_back_as_it_was(text):
    tokenizer = train_byte_bpe([["The quick river.", "The lazy engine."]], 300)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert [tokenizer.convert_tokens_to_ids(t) for t in ("<unk>", "<s>", "</s>", "<pad>")] == [
        *(0, 1, 2, 3)
    ]


def test_a_vocabulary_without_room_for_bytes_is_refused():
    with pytest.raises(UserError, match=r"data\.vocab_size=100 has no room .* at least 260"):
        train_byte_bpe([["text"]], 100)


def test_training_and_evaluation_have_one_shape():
    data = small_data()
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
        shapes = {tuple(batch["input_ids"].shape) for batch in loader}
        assert shapes == {(4, 16)}


def test_the_embedded_text_is_in_one_split_each():
    data = TextData(vocab_size=512)
    splits = [set(data._texts(split)) for split in ("train", "validation", "test")]
    assert all(splits)
    assert len(set.union(*splits)) == sum(map(len, splits))
    assert data._texts("test") != TextData(seed=1)._texts("test")


def _in_order(data: TextData) -> list[list[int]]:
    """The tokens of the prompts, as the batches have them."""
    found = {}
    for batch in data.predict_dataloader():
        batch = data.on_before_batch_transfer(batch, 0)
        rows = zip(batch["numbers"], batch["is_real"], strict=True)
        for row, (number, is_real) in enumerate(rows):
            if is_real:
                mask = batch["attention_mask"][row]
                assert (mask.diff() >= 0).all()
                found[number] = batch["input_ids"][row][mask == 1].tolist()
    return [found[number] for number in range(len(found))]


@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_prompts_are_padded_on_the_left_to_their_buckets(batch_size):
    data = small_data(prompts=PROMPTS, eval_batch_size=batch_size)
    tokenizer = data.get_tokenizer()
    assert _in_order(data) == [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    batches = list(data.predict_dataloader())
    assert {batch["input_ids"].shape[0] for batch in batches} == {min(batch_size, len(PROMPTS))}
    assert {batch["input_ids"].shape[1] for batch in batches} <= {8, 32}


def test_a_file_has_a_prompt_a_line(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("One\ttab and, commas\n\n  two spaces\n", "utf-8")
    found = small_data(prompts_file=str(file)).read_prompts()
    assert [prompt.text for prompt in found] == ["One\ttab and, commas", "  two spaces"]


def test_a_column_is_cut_and_empty_rows_are_left_out(tmp_path):
    file = tmp_path / "news.jsonl"
    rows = [{"content": text, "other": 1} for text in (PROMPTS[1], "", None, PROMPTS[3])]
    file.write_text("\n".join(map(json.dumps, rows)))
    settings = {"path": str(file), "columns": {"text": "content"}, "prompt_tokens": 4}
    data = small_data(**settings)
    data.tokenizer = train_byte_bpe([PROMPTS], VOCABULARY)
    with pytest.warns(UserWarning, match=r"split train: 2 row\(s\) without text are left out"):
        found = data.read_prompts()
    whole = [data.tokenizer(text)["input_ids"] for text in (PROMPTS[1], PROMPTS[3])]
    assert [prompt.tokens for prompt in found] == [tokens[:4] for tokens in whole]
    assert [PROMPTS[i].startswith(p.text) for i, p in zip((1, 3), found, strict=True)] == [True] * 2
    data = small_data(**settings, max_prompts=1)
    data.tokenizer = train_byte_bpe([PROMPTS], VOCABULARY)
    assert len(data.read_prompts()) == 1


def test_the_prompts_of_a_data_set_are_those_of_its_test_split():
    found = small_data(prompt_tokens=3).read_prompts()
    assert len(found) == 4  # rows of test.csv


def test_embedded_prompts_know_what_followed():
    data = TextData(vocab_size=512, prompt_tokens=5, max_prompts=3)
    tokenizer, texts = data.get_tokenizer(), data._texts("test")
    found = data.read_prompts()
    assert len(found) == 3
    for prompt in found:
        assert len(prompt.tokens) == 5
        assert tokenizer.decode([*prompt.tokens, *prompt.following]) in texts


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompts_file": "/no/such"}, r"data\.prompts_file=/no/such does not exist"),
        ({"max_prompts": 0}, r"data\.max_prompts=0 leaves no prompt"),
        ({"prompt_tokens": 0}, r"data\.prompt_tokens=0 leaves no prompt"),
        ({"prompt_buckets": []}, r"data\.prompt_buckets=\[\] must be different lengths"),
        ({"prompt_buckets": [8, 8]}, r"data\.prompt_buckets=\[8, 8\] must be different"),
        ({"block_size": 1}, r"data\.block_size=1 leaves no context"),
        ({"columns": {"text": "content"}}, r"no column 'content'\. It has 'id', 'article'"),
        ({"columns": {"txt": "article"}}, r"data\.columns: 'txt' is none of text"),
        ({"path": None}, r"data\.source=path needs data\.path"),
        ({"source": "embedded"}, r"data\.path is set, but data\.source=embedded"),
        ({"validation_share": 0.6}, r"data\.validation_share=0\.6 is not between"),
        ({"batch_size": 0}, r"data\.batch_size=0 must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused_at_once(settings, message):
    with pytest.raises(UserError, match=message):
        small_data(**settings)


def test_a_column_without_text_and_one_of_numbers_are_refused(tmp_path):
    file = tmp_path / "news.jsonl"
    file.write_text('{"text": ""}\n{"text": null}\n')
    data = small_data(path=str(file), columns=None)
    data.tokenizer = train_byte_bpe([PROMPTS], VOCABULARY)
    with pytest.raises(UserError, match=r"split train: all of its 2 row\(s\) are empty"):
        data.read_prompts()
    file.write_text('{"text": 3}\n')
    with pytest.raises(UserError, match=r"line 1: the column 'text' holds 3, int, not text"):
        small_data(path=str(file), columns=None)


def test_a_prompt_that_no_bucket_holds_is_refused_with_what_to_do():
    data = small_data(prompts=["short", "very long " * 40])
    message = (
        r"data\.prompts: prompt 2 of 2 has \d+ tokens, but the largest bucket holds 32: 'very "
        r"long .*data\.prompt_buckets, or cut prompts with data\.prompt_tokens=32"
    )
    with pytest.raises(UserError, match=message):
        data.read_prompts()
    data = small_data(prompts=["short", "very long " * 40], prompt_tokens=32)
    assert len(data.read_prompts()[1].tokens) == 32


def test_text_shorter_than_a_block_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"has \d+ tokens, fewer than a block\. Add text, or set"):
        small_data(block_size=100_000).train_dataloader()


def test_a_tokenizer_without_padding_wants_to_be_told_a_token(tmp_path, pretrained):
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"has no padding token.*data\.pad_token=</s>"):
        small_data(tokenizer=str(tmp_path))
    with pytest.raises(UserError, match=r"data\.pad_token=<none> is no token of"):
        small_data(tokenizer=str(tmp_path), pad_token="<none>")
    data = small_data(tokenizer=str(tmp_path), pad_token="</s>", prompts=["a", "a b c"])
    assert data.tokenizer.pad_token_id == 2
    assert _in_order(data) == [data.tokenizer(text)["input_ids"] for text in ("a", "a b c")]


def test_the_vocabulary_travels_in_the_checkpoint():
    data, other = small_data(), small_data(seed=1, vocab_size=280)
    data.get_tokenizer()
    other.load_state_dict(data.state_dict())
    assert other.get_tokenizer().get_vocab() == data.get_tokenizer().get_vocab()
    assert FIXTURES.is_dir()
