"""What a generator keeps, when it stops, and what it does with a model's own settings."""

import copy
import inspect
import pickle
import re
from pathlib import Path

import pytest
import torch

from lightning_gaudi import vendor
from lightning_gaudi.inference import Sampling, Stopwatch, TextGenerator, generate, pad_left
from tests.helpers.forked import fork_python
from tests.inference.tiny_models import END, PAD, build, prompts

BUCKETS = (8, 16)
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "inference.md"


def batch(count=3):
    return pad_left(prompts(count + 1)[1:], (16,), PAD)


def ends_of(tokens):
    """For each row of [B, N] a token that it has first somewhere in the middle."""
    return [next(t for i, t in enumerate(row) if i > 1 and t not in row[:i]) for row in tokens]


def test_after_a_rows_end_there_is_padding_only():
    model = build()
    free = TextGenerator(model, buckets=BUCKETS, eos_token_id=())(*batch(), 12).tolist()
    ends = ends_of(free)
    tokens = TextGenerator(model, buckets=BUCKETS, eos_token_id=ends)(*batch(), 12).tolist()
    for row, whole in zip(tokens, free, strict=True):
        end = next(i for i, token in enumerate(whole) if token in ends)
        assert row == whole[: end + 1] + [PAD] * (11 - end)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_the_cache_is_given_under_the_name_that_the_model_has_for_it(name, monkeypatch):
    """transformers renames it in 5.24; the model of either test takes one name alone."""
    model = build()
    expected = TextGenerator(model, buckets=BUCKETS)(*batch(), 6)
    forward = model.forward
    own = next(
        n for n in ("cache", "past_key_values") if n in inspect.signature(forward).parameters
    )

    def renamed(**given):
        given[own] = given.pop(name)
        return forward(**given)

    names = ("input_ids", "attention_mask", "position_ids", name, "use_cache", "logits_to_keep")
    takes = [inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY) for each in names]
    renamed.__signature__ = inspect.Signature(takes)
    monkeypatch.setattr(model, "forward", renamed)
    assert torch.equal(TextGenerator(model, buckets=BUCKETS)(*batch(), 6), expected)


@pytest.mark.parametrize("check_end_every", [1, 4])
def test_it_stops_when_all_rows_have_ended(check_end_every):
    model = build(device="hpu")
    free = TextGenerator(model, "none", BUCKETS, eos_token_id=())(*batch(), 12).tolist()
    ends = ends_of(free)
    generator = TextGenerator(model, "none", BUCKETS, eos_token_id=ends)
    seen = []
    whole = generator(*batch(), 12)
    cut = generator(
        *batch(), 12, check_end_every=check_end_every, on_logits=lambda _: seen.append(1)
    )
    assert torch.equal(cut, whole)
    longest = max(next(i for i, t in enumerate(row) if t in ends) for row in free) + 1
    assert len(seen) == -(-longest // check_end_every) * check_end_every < 12


def test_a_call_with_more_new_tokens_goes_on_where_a_shorter_one_ended():
    generator = TextGenerator(build(), buckets=BUCKETS, eos_token_id=())
    short, long = generator(*batch(), 4), generator(*batch(), 9)
    assert torch.equal(long[:, :4], short)
    assert torch.equal(generator(*batch(), 4), short)
    assert generator(*batch(), 1).shape == (3, 1)


def test_the_result_stays_when_the_next_batch_comes():
    generator = TextGenerator(build(), buckets=BUCKETS)
    first = generator(*batch(), 6)
    kept = first.clone()
    generator(*pad_left([[9, 8], [7], [6, 5, 4]], (16,), PAD), 6)
    assert torch.equal(first, kept)


def test_padding_to_a_wider_bucket_changes_no_text():
    text = pad_left([[5, 6, 7]], (3,), PAD)
    tokens = [TextGenerator(build(), buckets=(width,))(*text, 8) for width in (3, 8, 16)]
    assert torch.equal(tokens[0], tokens[1])
    assert torch.equal(tokens[0], tokens[2])


def test_tensors_may_be_on_the_device_of_any_integers_and_cost_one_look():
    generator = TextGenerator(build(device="hpu"), "none", BUCKETS)
    ids, mask = batch()
    expected = generator(ids, mask, 6)
    on_card = ids.int().to("hpu"), mask.bool().to("hpu")
    for check_prompts, waits in ((True, 1), (False, 0)):
        before = vendor.metric("host_sync")["TotalNumber"]
        tokens = generator(*on_card, 6, check_prompts=check_prompts)
        assert vendor.metric("host_sync")["TotalNumber"] - before == waits
        assert torch.equal(tokens, expected)


def test_inference_mode_and_what_is_outside_of_it_share_a_cache():
    generator = TextGenerator(build(), buckets=BUCKETS)
    with torch.inference_mode():
        inside = generator(*batch(), 6)
    assert torch.equal(generator(*batch(), 6), inside)
    assert not inside.is_inference()


REPLACED = """
    import torch
    from lightning_gaudi.inference import TextGenerator
    from tests.inference.test_generation import BUCKETS, batch
    from tests.inference.tiny_models import build

    model = build(device="hpu")
    generator = TextGenerator(model, "auto", BUCKETS)
    before = generator(*batch(), 8)
    model.to("cpu").to("hpu")
    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight.flip(0))
    after = generator(*batch(), 8)
    assert torch.equal(after.cpu(), TextGenerator(model, "none", BUCKETS)(*batch(), 8).cpu())
    assert not torch.equal(after.cpu(), before.cpu())
    half = generator(*batch(), 8) if model.bfloat16() else None
    assert torch.equal(half.cpu(), TextGenerator(model, "none", BUCKETS)(*batch(), 8).cpu())
    assert generator.num_captures == 1
"""


@pytest.mark.slow
def test_graphs_of_weights_that_were_replaced_are_dropped():
    fork_python(REPLACED, env={"PT_HPU_LAZY_MODE": "1"})


def test_a_model_that_has_moved_is_refused():
    model = build()
    generator = TextGenerator(model, buckets=BUCKETS)
    model.to("hpu")
    with pytest.raises(ValueError, match="was on cpu when its TextGenerator was made, and is on h"):
        generator(*batch(), 4)


def test_under_autocast_the_cache_is_of_its_dtype():
    model = build(device="hpu")
    generator = TextGenerator(model, "none", BUCKETS)
    full = generator(*batch(), 6)
    with torch.autocast("hpu", dtype=torch.bfloat16):
        half = generator(*batch(), 6)
        expected = model.generate(
            input_ids=batch().input_ids.to("hpu"),
            attention_mask=batch().attention_mask.to("hpu"),
            max_new_tokens=6,
            do_sample=False,
        )[:, 16:].cpu()
    assert torch.equal(generator(*batch(), 6), full)
    assert (half.cpu()[:, : expected.shape[1]] == expected).float().mean() > 0.8


def test_generate_keeps_its_generator_with_the_model_and_not_with_a_copy():
    model = build()
    settings = {"buckets": BUCKETS, "eos_token_id": [END, 50]}
    expected = TextGenerator(model, **settings)(*batch(), 6)
    assert torch.equal(generate(model, *batch(), 6, **settings), expected)
    (kept,) = model._gaudi_generators.values()
    generate(model, *batch(), 6, **settings)
    assert [*model._gaudi_generators.values()] == [kept]
    assert copy.deepcopy(model)._gaudi_generators == {}
    assert pickle.loads(pickle.dumps(model))._gaudi_generators == {}


def test_ends_and_padding_are_the_models_own():
    model = build()
    model.generation_config.eos_token_id = [END, 40]
    model.generation_config.pad_token_id = 7
    generator = TextGenerator(model)
    assert (generator.pad_token_id, generator.eos_token_ids) == (7, (END, 40))
    given = TextGenerator(model, pad_token_id=0, eos_token_id=9)
    assert (given.pad_token_id, given.eos_token_ids) == (0, (9,))


def test_settings_of_the_model_that_change_its_text_are_told():
    model = build()
    model.generation_config.repetition_penalty = 1.2
    with pytest.warns(UserWarning, match="repetition_penalty=1.2, which lightning_gaudi.inf"):
        TextGenerator(model)


def test_a_stopwatch_counts_no_padding():
    model = build(device="hpu")
    free = TextGenerator(model, "none", BUCKETS, eos_token_id=())(*batch(), 12).tolist()
    ends = ends_of(free)
    generator = TextGenerator(model, "none", BUCKETS, eos_token_id=ends)
    stopwatch = Stopwatch("hpu", num_warmup_calls=1)
    for _ in range(3):
        with stopwatch.call(num_items=3):
            generator(*batch(), 12, stopwatch=stopwatch)
    report = stopwatch.report()
    lengths = [next(i for i, t in enumerate(row) if t in ends) + 1 for row in free]
    assert (report.num_calls, report.num_items) == (2, 6)
    assert report.num_tokens == 2 * sum(lengths)
    with stopwatch.call(num_items=6):
        generator(*batch(), 12, stopwatch=stopwatch)
        generator(*pad_left([[5], [6], [7]], (16,), PAD), 1, stopwatch=stopwatch)
    assert stopwatch.report().num_tokens == 3 * sum(lengths) + 3
    assert 0 < report.first_token_ms / 1e3 < report.seconds


@pytest.mark.parametrize("settings", [{"n_head": 6}, {"pretraining_tp": 1}])
def test_sampling_with_top_k_of_one_is_greedy(settings):
    generator = TextGenerator(build("Bloom", **settings), buckets=BUCKETS)
    sampling = Sampling(temperature=3.0, top_k=1)
    drawn = generator(*batch(), 6, sampling=sampling, seeds=1)
    assert torch.equal(drawn, generator(*batch(), 6))


def test_the_example_of_the_page_runs(capsys, monkeypatch):
    monkeypatch.setattr(torch.hpu, "is_available", lambda: False)  # spares the compiler
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    example = next(each for each in examples if "TextGenerator" in each)
    names = {}
    exec(example, names)
    assert names["tokens"].shape == names["drawn"].shape == (2, 20)
    assert "tokens/s" in capsys.readouterr().out
