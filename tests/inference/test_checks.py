"""What generation refuses, and in which words."""

import pytest
import torch

from lightning_gaudi.inference import Sampling, TextGenerator, generate, pad_left
from tests.inference.tiny_models import PAD, build

SAMPLING = Sampling()
BUCKETS = (4, 8)
PAIR = pad_left([[5, 6], [7]], BUCKETS, PAD)


@pytest.fixture(scope="module")
def generator():
    return TextGenerator(build(), buckets=BUCKETS)


def call(generator, ids=None, mask=None, num_tokens=4, **settings):
    ids = PAIR.input_ids if ids is None else torch.as_tensor(ids)
    mask = torch.ones_like(ids) if mask is None else torch.as_tensor(mask)
    return generator(ids, mask, num_tokens, **settings)


WRONG = {
    "too long": ({"ids": [[5] * 9]}, "A prompt has 9 tokens but the largest bucket holds 8"),
    "empty": ({"mask": [[0, 0, 0, 1], [0, 0, 0, 0]]}, "Prompt 1 has no tokens. Leave it out"),
    "right": (
        {"mask": [[0, 0, 1, 1], [1, 0, 0, 0]]},
        "attention_mask of prompt 1 is not zeros and then ones: prompts are padded on the left",
    ),
    "two": ({"mask": [[0, 0, 1, 2], [0, 0, 0, 1]]}, "of prompt 0 is not zeros and then ones"),
    "vocabulary": ({"ids": [[5, 96]]}, "input_ids has token 96, but the vocabulary of Llama.* 96"),
    "one prompt": ({"ids": [5, 6]}, r"\[prompts, tokens\] and not empty, but its shape is \(2,\)"),
    "no prompt": ({"ids": torch.zeros(0, 4).long()}, r"not empty, but its shape is \(0, 4\)"),
    "shape": (
        {"mask": [[1, 1]]},
        r"mask is of shape \(1, 2\), and input_ids of \(2, 4\)",
    ),
    "ids": ({"ids": [[5.0]]}, "input_ids must be integers, but is torch.float32"),
    "mask": ({"ids": [[5]], "mask": [[1.0]]}, "attention_mask must be integers, but is torch.fl"),
    "no tokens": ({"num_tokens": 0}, "max_new_tokens must be at least 1, but is 0"),
    "end": ({"check_end_every": 0}, "check_end_every must be at least 1, but is 0"),
    "no seeds": ({"sampling": SAMPLING}, "sampling needs seeds, one for each prompt or one for"),
    "seeds": ({"sampling": SAMPLING, "seeds": [1, 2, 3]}, "There are 3 seeds for 2 prompts"),
    "seeds of nothing": ({"seeds": 1}, "seeds are for drawing tokens, and sampling is None"),
    "beams": ({"num_beams": 4}, "num_beams=4: there is no beam search"),
    "several": ({"num_return_sequences": 2}, "give a prompt several times with other seeds"),
    "do_sample": ({"do_sample": True}, r"no argument 'do_sample'. Pass sampling=Sampling\(...\)"),
    "top_k": ({"top_k": 5}, r"no argument 'top_k'. Pass sampling=Sampling\(top_k=...\)"),
    "nearest": ({"check_end_evry": 5}, "'check_end_evry'. Did you mean check_end_every?"),
    "none near": ({"penalty_alpha": 1}, "There are input_ids, attention_mask, max_new_tokens, sam"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(generator, name):
    settings, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        call(generator, **settings)


def test_texts_of_weights_in_shards_of_zero3_have_one_length():
    model = build()
    next(model.parameters()).ds_tensor = torch.zeros(1)  # as DeepSpeed marks them
    generator = TextGenerator(model)
    with pytest.raises(ValueError, match=r"check_end_every=4 ends a call .* wait for ever"):
        call(generator, check_end_every=4)


def test_a_text_longer_than_the_models_positions_is_refused():
    generator = TextGenerator(build("GPT-2", n_positions=10), buckets=(16,))
    assert call(generator, num_tokens=7).shape == (2, 7)
    with pytest.raises(ValueError, match=r"4 tokens and max_new_tokens is 8, but GPT2.* 10 posit"):
        call(generator, num_tokens=8)


@pytest.mark.parametrize("buckets", [(), (8, 4), (0, 4), (4, 4)])
def test_buckets_ascend(buckets):
    with pytest.raises(ValueError, match="must be whole numbers that ascend from at least 1"):
        TextGenerator(build(), buckets=buckets)


def test_generate_names_what_it_does_not_do():
    with pytest.raises(ValueError, match=r"There is no argument 'temperature'. Pass sampling"):
        generate(build(), *PAIR, 4, temperature=0.7)


def test_prompts_that_cannot_be_padded_are_refused():
    with pytest.raises(ValueError, match="There are no prompts to pad"):
        pad_left([], BUCKETS, PAD)
    with pytest.raises(ValueError, match="Prompt 1 has no tokens"):
        pad_left([[5], []], BUCKETS, PAD)
    with pytest.raises(ValueError, match="has 9 tokens but the largest bucket holds 8"):
        pad_left([[5] * 9], BUCKETS, PAD)


def test_a_model_without_padding_is_told_how_to_get_it():
    model = build(pad_token_id=None)
    with pytest.raises(ValueError, match=r"Llama.* has no padding token.* Pass pad_token_id="):
        TextGenerator(model)
    assert TextGenerator(model, pad_token_id=2).pad_token_id == 2
    with pytest.raises(ValueError, match="pad_token_id=-1 is no token of a vocabulary of 96"):
        TextGenerator(model, pad_token_id=-1)


def test_a_model_in_training_mode_is_refused(generator):
    with pytest.raises(ValueError, match=r"is in training mode.* Call model.eval\(\)"):
        TextGenerator(build().train())
    generator.model.train()
    try:
        with pytest.raises(ValueError, match="is in training mode"):
            call(generator)
    finally:
        generator.model.eval()


def other_models():
    from transformers import (
        MambaConfig,
        MambaForCausalLM,
        MistralConfig,
        MistralForCausalLM,
        T5Config,
        T5ForConditionalGeneration,
    )

    tiny = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "pad_token_id": 0}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 16}
    t5 = {"vocab_size": 32, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return {
        "is an encoder-decoder model": T5ForConditionalGeneration(T5Config(**t5)),
        "no static cache for MambaForCausalLM": MambaForCausalLM(MambaConfig(**tiny)),
        "has layers of sliding_attention": MistralForCausalLM(
            MistralConfig(**tiny, **heads, sliding_window=4)
        ),
        "Linear is no model of transformers": torch.nn.Linear(2, 2),
    }


def test_models_without_a_static_cache_of_the_whole_text_are_refused():
    for message, model in other_models().items():
        with pytest.raises(ValueError, match=message):
            TextGenerator(model.eval())
