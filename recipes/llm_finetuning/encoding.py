"""Encodes conversations as tokens, with labels only for what the assistant says.

Shapes: T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from recipes.common.errors import UserError, first_line
from recipes.common.tokenization import use_all_cores
from recipes.llm_finetuning.conversations import Conversation, Message

IGNORED = -100
"""The label of tokens that the loss leaves out."""
_AT_ONCE = 1024
"""The number of texts that the tokenizer is given in one call."""
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Source: the format of OpenAI's ChatML, as Qwen's tokenizers have it without a system message."""


class Span(NamedTuple):
    """The characters of an answer in the text of a conversation, with the mark that ends it."""

    start: int
    end: int


class Template:
    """Writes a conversation as a text, in the model's format.

    If the tokenizer has no chat template, a question and its answer are written one after the
    other. The token that begins a text precedes them if the tokenizer adds it to texts, and the
    token that ends a text follows them.

    Args:
        tokenizer: the model's tokenizer, whose chat template is used if it has one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._is_chat = bool(getattr(tokenizer, "chat_template", None))
        begins = tokenizer("a", verbose=False)["input_ids"][:1] == [tokenizer.bos_token_id]
        self._begin = str(tokenizer.bos_token) if begins else ""

    def prompt(self, conversation: Conversation) -> str:
        """Returns the text up to the last answer."""
        return self._render(conversation, conversation.question, is_prompt=True)

    def text(self, conversation: Conversation) -> tuple[str, list[Span]]:
        """Returns the whole text, and the spans of the answers in it.

        Raises:
            UserError: The template refuses the conversation, or writes something else after a
                prompt than the answer.
        """
        messages = conversation.messages
        whole = self._render(conversation, messages, is_prompt=False)
        starts = []
        for number, message in enumerate(messages):
            if message.role == "assistant":
                prompt = self._render(conversation, messages[:number], is_prompt=True)
                content = message.content.strip()
                start = len(prompt)
                place = whole.find(content, start)
                if not whole.startswith(prompt) or place < 0:
                    raise UserError(
                        f"{conversation.place}: the tokenizer's chat template does not write "
                        f"message {number + 1} right after the prompt for it, so it is not known "
                        "which tokens are the answer. Set another data.chat_template, such as "
                        "chatml."
                    )
                starts.append((start, place + len(content)))
        # What follows the last answer, such as <|im_end|>, ends it, and the model has to learn it.
        # Other answers end with as much of that as follows them, too.
        ending = whole[starts[-1][1] :]
        return whole, [Span(start, end + _common(whole[end:], ending)) for start, end in starts]

    def _render(
        self, conversation: Conversation, messages: Sequence[Message], *, is_prompt: bool
    ) -> str:
        if not self._is_chat:
            return self._plain(conversation, messages, is_prompt=is_prompt)
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    [each._asdict() for each in messages],
                    tokenize=False,
                    add_generation_prompt=is_prompt,
                )
            )
        except Exception as error:  # a template is a program, and may raise anything
            raise UserError(
                f"{conversation.place}: the tokenizer's chat template refuses the conversation: "
                f"{first_line(error)} The roles are {', '.join(each.role for each in messages)}. "
                "Change the row, or set another data.chat_template, such as chatml."
            ) from error

    def _plain(
        self, conversation: Conversation, messages: Sequence[Message], *, is_prompt: bool
    ) -> str:
        if len(conversation.messages) != 2 or messages[0].role != "user":
            raise UserError(
                f"{conversation.place}: the tokenizer has no chat template, and the conversation "
                "is more than a question and its answer. Set data.chat_template=chatml, or to a "
                "file with a template, or take a model that was trained to chat."
            )
        text = self._begin + "".join(each.content for each in messages)
        return text if is_prompt else f"{text}{self._tokenizer.eos_token or ''}"


def _common(text: str, other: str) -> int:
    """Returns the length of the common beginning of two texts."""
    pairs = zip(text, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


class EncodedRows(Dataset[dict[str, np.ndarray]]):
    """Holds encoded rows of tokens and labels, unpadded, in two long arrays.

    Args:
        rows: the tokens and the labels of each row, [T] each.
    """

    def __init__(self, rows: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
        found = list(rows)
        self.lengths = np.array([len(tokens) for tokens, _ in found], np.int64)
        """The number of tokens of each row, int64 [number of rows]."""
        self._starts = np.concatenate([[0], self.lengths.cumsum()])
        self._tokens = np.concatenate([each for each, _ in found]) if found else np.zeros(0, int)
        self._labels = np.concatenate([each for _, each in found]) if found else np.zeros(0, int)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """Returns input_ids and labels, int64 [T]; a token's label is the token after it."""
        span = slice(self._starts[index], self._starts[index + 1])
        return {
            "input_ids": self._tokens[span].astype(np.int64),
            "labels": self._labels[span].astype(np.int64),
        }

    def concatenated(self, length: int, *, is_all_learnt: bool) -> EncodedRows:
        """Returns all rows as one text, cut to rows of that many tokens; the rest is left out.

        Args:
            length: the number of tokens of a row.
            is_all_learnt: whether all tokens are learnt, even the first token of a document,
                which is predicted from the end of the document before it.
        """
        stops = range(length, len(self._tokens) + 1, length)
        parts = [slice(stop - length, stop) for stop in stops]
        tokens = [self._tokens[part] for part in parts]
        if is_all_learnt:
            return EncodedRows((each, _shifted(each)) for each in tokens)
        labels = [self._labels[part] for part in parts]
        return EncodedRows(zip(tokens, labels, strict=True))

    @property
    def learnt(self) -> np.ndarray:
        """The tokens of all rows that the model is trained to predict."""
        return self._labels[self._labels != IGNORED]


class Cut(NamedTuple):
    """The number of rows that were longer than they may be."""

    num_rows: int = 0
    num_at_start: int = 0
    """The number of those that lost their beginning, to keep the answer at their end."""


def encode_conversations(
    conversations: Iterable[Conversation],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    *,
    learns_questions: bool = False,
    together: int = 1,
) -> tuple[EncodedRows, Cut]:
    """Returns conversations as tokens, with labels for the tokens of the answers.

    A conversation that is longer than `max_length` loses its end, or its beginning if no answer
    would be left otherwise. Conversations that answer the same question all lose as much of their
    beginning as the longest of them, so that their questions stay alike; if that is not enough,
    their ends are cut.

    Args:
        conversations: the rows.
        tokenizer: the model's tokenizer.
        max_length: the largest number of tokens of a row.
        learns_questions: whether the tokens of questions have labels, too.
        together: how many successive conversations answer the same question.

    Raises:
        UserError: The template refuses a conversation, or an answer has no token.
    """
    use_all_cores()
    template, rows, num_cut, num_at_start = Template(tokenizer), [], 0, 0
    found = _tokenized(conversations, template, tokenizer)
    if together > 1:
        found = _cut_alike(found, together, max_length)
    for conversation, tokens, is_answer in found:
        labels = tokens if learns_questions else np.where(is_answer, tokens, IGNORED)
        if len(tokens) > max_length:
            num_cut += 1
            # The label of the first token is lost, since no token predicts it.
            has_answer = (labels[1:max_length] != IGNORED).any()
            num_at_start += not has_answer
            part = slice(max_length) if has_answer else slice(len(tokens) - max_length, None)
            tokens, labels = tokens[part], labels[part]
        if not (labels[1:] != IGNORED).any():
            raise UserError(f"{conversation.place}: its answer has no token. Remove the row.")
        rows.append((tokens, _shifted(labels)))
    return EncodedRows(rows), Cut(num_cut, num_at_start)


def encode_documents(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> EncodedRows:
    """Returns texts as rows of at most `max_length` tokens, all of which but the first are learnt.

    The token that ends a text is added to each. A longer text becomes several rows.
    """
    use_all_cores()
    end, rows = tokenizer.eos_token_id, []
    for batch in _batched(texts):
        encoded = tokenizer(
            batch, add_special_tokens=False, return_attention_mask=False, verbose=False
        )["input_ids"]
        for ids in encoded:
            tokens = np.array([*ids, end], np.int32)
            for start in range(0, len(tokens) - 1, max_length):
                part = tokens[start : start + max_length]
                if len(part) > 1:
                    rows.append((part, _shifted(part)))
    return EncodedRows(rows)


_Tokenized = tuple[Conversation, np.ndarray, np.ndarray]


def _cut_alike(rows: Iterator[_Tokenized], together: int, max_length: int) -> Iterator[_Tokenized]:
    """Cuts the excess of the longest row of a group from the beginning of all its rows.

    At most what precedes the last answer is cut.
    """
    while group := list(islice(rows, together)):
        excess = max(len(tokens) for _, tokens, _ in group) - max_length
        # An answer without a token begins nowhere; `encode_conversations` refuses it.
        begins = min(
            max(np.flatnonzero(np.diff(is_answer * 1) > 0), default=0) for _, _, is_answer in group
        )
        start = max(0, min(excess, begins))
        for conversation, tokens, is_answer in group:
            yield conversation, tokens[start:], is_answer[start:]


def _tokenized(
    conversations: Iterable[Conversation], template: Template, tokenizer: PreTrainedTokenizerBase
) -> Iterator[_Tokenized]:
    """Yields each conversation with its tokens, and a mask of those that belong to answers."""
    for batch in _batched(conversations):
        texts, spans = zip(*map(template.text, batch), strict=True)
        encoded = tokenizer(
            list(texts),
            add_special_tokens=False,  # they are already in the text
            return_attention_mask=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        for conversation, ids, offsets, answers in zip(
            batch, encoded["input_ids"], encoded["offset_mapping"], spans, strict=True
        ):
            places = np.array(offsets, np.int64).reshape(-1, 2)
            is_answer = np.zeros(len(ids), bool)
            for start, end in answers:  # a token that only overlaps an answer counts as part of it
                is_answer |= (places[:, 1] > start) & (places[:, 0] < end)
            yield conversation, np.array(ids, np.int32), is_answer


def _shifted(labels: np.ndarray) -> np.ndarray:
    """Returns labels moved one place forward, so that a token has the label of the next one."""
    return np.append(labels[1:], np.int32(IGNORED)).astype(np.int32)


def _batched(rows: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(rows)
    while batch := list(islice(iterator, _AT_ONCE)):
        yield batch
