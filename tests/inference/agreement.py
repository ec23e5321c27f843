"""Runs our generation beside transformers', in this process's mode; `python -m` prints what it saw.

B prompts of a batch, T tokens that each is padded to, N new tokens.
"""

import json
import sys

import torch

from lightning_gaudi import vendor
from lightning_gaudi.inference import TextGenerator, pad_left
from tests.inference.tiny_models import END, PAD, build, prompts

BUCKETS = (8, 16)
NUM_TOKENS = 12


def batches(batch_size, count, shift=0):
    """[B, T] each, in their order; alone, the first prompt fills its bucket and is not padded."""
    texts = [[(token + shift) % 90 + 5 for token in text] for text in prompts(count)]
    starts = range(0, len(texts), batch_size)
    return [pad_left(texts[i : i + batch_size], BUCKETS, PAD) for i in starts]


def reference(model, count):
    """transformers' tokens [count, N] and logits [count, N, V], on the CPU, prompt by prompt."""
    tokens, logits = [], []
    for ids, _ in batches(1, count):
        ids = ids[ids != PAD][None]
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        new = out.sequences[:, ids.shape[1] :]
        fill = NUM_TOKENS - new.shape[1]
        tokens.append(torch.nn.functional.pad(new, (0, fill), value=PAD))
        logits.append(torch.nn.functional.pad(torch.stack(out.logits, 1), (0, 0, 0, fill)))
    return torch.cat(tokens), torch.cat(logits)


def ours(generator, batch_size, count):
    """The same of ours, zeros for the logits of what comes after a row's end."""
    tokens, logits = [], []
    for ids, mask in batches(batch_size, count):
        seen = []
        new = generator(
            ids, mask, NUM_TOKENS, on_logits=lambda each, seen=seen: seen.append(each.cpu())
        ).cpu()
        has_ended = (new == END).cumsum(1) - (new == END).int() > 0
        tokens.append(new)
        logits.append(torch.stack(seen, 1).masked_fill(has_ended[..., None], 0.0))
    return torch.cat(tokens), torch.cat(logits)


def observe(kind, device="cpu", engine="auto", count=64, batch_sizes=(1, 8), capture_prefill=False):
    """How far our text is from transformers', and what it costs, in a first and a second pass.

    Logits differ by a share of the largest one. The second pass has other prompts in the same
    batches.
    """
    expected, expected_logits = reference(build(kind), count)
    largest = expected_logits.abs().max()
    model = build(kind, device)
    generator = TextGenerator(model, engine, BUCKETS, capture_prefill=capture_prefill)
    found = {"distinct": len(expected.unique())}
    before = _counted()
    for batch_size in batch_sizes:
        tokens, logits = ours(generator, batch_size, count)
        found[f"tokens {batch_size}"] = int((tokens != expected).sum())
        found[f"logits {batch_size}"] = float((logits - expected_logits).abs().max() / largest)
    found |= {f"first {key}": value - before[key] for key, value in _counted().items()}
    found["first captures"] = generator.num_captures
    pairs = [pair for size in batch_sizes for pair in batches(size, count, shift=7)]
    found["shapes"] = len({tuple(ids.shape) for ids, _ in pairs})
    found["calls"] = len(pairs)
    before = _counted()
    for ids, mask in pairs:
        generator(ids, mask, NUM_TOKENS)
    vendor.mark_step()
    found |= {f"second {key}": value - before[key] for key, value in _counted().items()}
    found["second captures"] = generator.num_captures
    return found


def waits(check_end_every):
    """How often the host waits for a batch of 12 tokens, none of whose rows ends."""
    generator = TextGenerator(build("Llama", "hpu"), "none", BUCKETS, eos_token_id=())
    before = _counted()["host_sync"]
    generator(*batches(8, 8)[0], NUM_TOKENS, check_end_every=check_end_every)
    return _counted()["host_sync"] - before


def _counted():
    names = ("graph_compilation", "host_sync", "launch")
    return {name: int(vendor.metric(name)["TotalNumber"]) for name in names}


def main(count, *kinds, capture_prefill=False):
    """Print what was observed of each kind on the HPU, as JSON."""
    for kind in kinds:
        found = observe(kind, "hpu", count=int(count), capture_prefill=capture_prefill)
        print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
