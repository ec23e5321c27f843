"""When F.scaled_dot_product_attention is fused, and what stays torch's."""

import warnings

import lightning.pytorch as pl
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn import functional as F  # noqa: N812

from lightning_gaudi import simulator
from lightning_gaudi._core import vendor
from lightning_gaudi.attention import fused_attention, fused_sdpa, is_fused, switch
from lightning_gaudi.attention.switch import torchs
from tests.attention.reference import CLOSE, attend, compare, masks, qkv
from tests.helpers.forked import fork_python
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import QUIET, TinyModule, batches


def _is_fused(out):
    return "FusedSDPA" in type(out.grad_fn).__name__


def test_it_is_torchs_until_somebody_asks():
    tensors = qkv(device="hpu")
    assert not is_fused()
    assert not _is_fused(F.scaled_dot_product_attention(*tensors))
    with fused_attention():
        assert _is_fused(F.scaled_dot_product_attention(*tensors))
        with fused_attention(False):
            assert not _is_fused(F.scaled_dot_product_attention(*tensors))
        assert _is_fused(F.scaled_dot_product_attention(*tensors))
    assert not _is_fused(F.scaled_dot_product_attention(*tensors))


def test_a_trainer_on_the_hpu_switches_it_on():
    trainer = pl.Trainer(accelerator="hpu", devices=1, max_steps=1, **QUIET)
    trainer.fit(TinyModule(), batches(1))
    assert is_fused()


TRAIN = """
import torch, lightning.pytorch as pl
from lightning_gaudi.attention import is_fused
from tests.helpers.tiny import QUIET, TinyModule, batches
pl.Trainer(accelerator="hpu", devices=1, max_steps=1, **QUIET).fit(TinyModule(), batches(1))
print("fused:", is_fused())
"""


def test_the_variable_switches_it_off():
    result = fork_python(TRAIN, env={"LIGHTNING_GAUDI_FUSED_ATTENTION": "0"})
    assert "fused: False" in result.stdout


def test_the_variable_switches_it_on_without_a_trainer():
    source = "import torch, lightning_gaudi.attention as a; print('fused:', a.is_fused())"
    result = fork_python(source, env={"LIGHTNING_GAUDI_FUSED_ATTENTION": "1"})
    assert "fused: True" in result.stdout


@pytest.mark.slow
def test_another_value_of_the_variable_is_refused():
    result = fork_python(TRAIN, env={"LIGHTNING_GAUDI_FUSED_ATTENTION": "yes"}, check=False)
    assert (
        "ValueError: LIGHTNING_GAUDI_FUSED_ATTENTION: 'yes' does not say whether attention"
        in result.stderr
    )


LAZY = """
import torch
from lightning_gaudi import vendor
from lightning_gaudi.attention import fused_attention
from tests.attention.reference import CLOSE, attend, compare, masks, qkv
vendor.init()
assert vendor.is_lazy()
ours, theirs, mask = qkv(device="hpu"), qkv(), masks()["rows that see nothing"]
with fused_attention():
    out = torch.nn.functional.scaled_dot_product_attention(*ours, attn_mask=mask.to("hpu"))
assert "MaskedFill" in type(out.grad_fn).__name__, out.grad_fn
compare(ours, theirs, out, attend(*theirs, attn_mask=mask))
"""


def test_lazy_mode():
    fork_python(LAZY, env={"PT_HPU_LAZY_MODE": "1"})


def test_tensors_on_the_cpu_stay_torchs():
    tensors = qkv()
    with fused_attention():
        out = F.scaled_dot_product_attention(*tensors, is_causal=True)
    assert torch.equal(out, torchs(*tensors, None, 0.0, True, None, False))


def test_torchscript_still_knows_the_function():
    def f(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    with pytest.warns(DeprecationWarning, match="torch.jit"):
        scripted = torch.jit.script(f)
    tensors = [t.detach() for t in qkv()]
    torch.testing.assert_close(scripted(*tensors), attend(*tensors))


def test_one_launch_where_torch_has_nine():
    tensors = [t.detach() for t in qkv(device="hpu")]
    counts = {}
    for enabled in (True, False):
        with fused_attention(enabled):
            F.scaled_dot_product_attention(*tensors)
            before = simulator.launches()
            F.scaled_dot_product_attention(*tensors)
            counts[enabled] = simulator.launches() - before
    assert counts[True] == 1
    assert counts[False] >= 9


def test_a_mask_that_is_learnt_stays_with_torch_and_says_so_once():
    ours, theirs = qkv(device="hpu"), qkv()
    bias = masks()["a bias of each head"]
    ours.append(bias.to("hpu").requires_grad_())
    theirs.append(bias.requires_grad_())
    with fused_attention():
        with pytest.warns(UserWarning, match="not fused: the mask wants a gradient"):
            out = F.scaled_dot_product_attention(*ours)
        out = F.scaled_dot_product_attention(*ours)
        with torch.no_grad():
            assert F.scaled_dot_product_attention(*ours).grad_fn is None
    compare(ours, theirs, out, attend(*theirs))


def test_other_shapes_and_transforms_stay_with_torch_and_say_so():
    q, k, v = (t.detach() for t in qkv(device="hpu"))
    expected = attend(*(t.cpu() for t in (q, k, v)))
    with fused_attention():
        with pytest.warns(UserWarning, match=r"not fused: queries, keys .* shapes"):
            out = F.scaled_dot_product_attention(q[None], k[None], v[None])
        torch.testing.assert_close(out[0].cpu(), expected)
        with pytest.warns(UserWarning, match=r"not fused: torch\.func transforms it"):
            out = torch.func.vmap(F.scaled_dot_product_attention)(q, k, v)
        torch.testing.assert_close(out.cpu(), expected)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_card_without_the_kernel_takes_operators_and_says_so(monkeypatch, compiled):
    monkeypatch.setattr(vendor, "device_name", lambda: "GAUDI")
    monkeypatch.setattr(switch, "_warned", set())
    attention = F.scaled_dot_product_attention
    attention = torch.compile(attention, backend="eager") if compiled else attention
    ours, theirs = qkv(device="hpu"), qkv()
    with fused_attention():
        with pytest.warns(UserWarning, match="not fused: a Gaudi 1 does not have .* FusedSDPA"):
            out = attention(*ours)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not _is_fused(F.scaled_dot_product_attention(*ours))
    compare(ours, theirs, out, attend(*theirs))
    with pytest.raises(ValueError, match="cannot compute this: a Gaudi 1 does not have"):
        fused_sdpa(*ours)


def test_a_generation_to_come_has_the_kernel(monkeypatch):
    monkeypatch.setattr(vendor, "device_name", lambda: "GAUDI9")
    with fused_attention():
        assert _is_fused(F.scaled_dot_product_attention(*qkv(device="hpu")))


@pytest.mark.parametrize("autocast", [False, True])
def test_float16_takes_operators_and_says_so(monkeypatch, autocast):
    monkeypatch.setattr(switch, "_warned", set())
    given = torch.float32 if autocast else torch.float16
    with fused_attention(), torch.autocast("hpu", torch.float16, enabled=autocast):
        with pytest.warns(UserWarning, match="float32 and bfloat16, not in float16"):
            out = F.scaled_dot_product_attention(*qkv(device="hpu", dtype=given))
        with pytest.raises(ValueError, match="not in float16"):
            fused_sdpa(*qkv(device="hpu", dtype=given))
    assert not _is_fused(out)
    assert out.dtype == torch.float16


def test_what_torch_refuses_it_still_refuses():
    q, k, v = qkv(device="hpu")
    with fused_attention(), pytest.raises(RuntimeError, match="same dtype"):
        F.scaled_dot_product_attention(q.bfloat16(), k, v)


@pytest.mark.parametrize("training", [True, False])
def test_torchs_encoder_layer(training):
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    layer.train(training)
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    padding = torch.arange(5) >= torch.tensor([[5], [3]])
    expected = layer(x, src_key_padding_mask=padding)
    expected.square().sum().backward()
    gradients = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    layer.to("hpu")
    with fused_attention(), torch.profiler.profile() as profile:
        out = layer(x.to("hpu"), src_key_padding_mask=padding.to("hpu"))
    assert "FusedSDPA" in {event.key for event in profile.key_averages()}
    out.square().sum().backward()
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-5, atol=1e-5)
    ours = [p.grad.cpu() for p in layer.parameters()]
    torch.testing.assert_close(ours, gradients, rtol=1e-5, atol=1e-5)


def _two_ranks_of_heads(rank):
    mesh = init_device_mesh("hpu", (2,))
    ours, theirs = qkv(device="hpu"), qkv()
    parts = [distribute_tensor(t.detach(), mesh, [Shard(1)]).requires_grad_() for t in ours]
    with fused_attention(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            out = F.scaled_dot_product_attention(*parts, is_causal=True)
    said = [str(each.message) for each in caught if "not fused" in str(each.message)]
    assert len(said) == 1, said
    assert "the tensors are of a class of their own, such as DTensor" in said[0]
    expected = attend(*theirs, is_causal=True)
    upstream = torch.ones_like(expected)
    expected.backward(upstream)
    out.backward(distribute_tensor(upstream.to("hpu"), mesh, [Shard(1)]))
    torch.testing.assert_close(out.full_tensor().cpu(), expected, rtol=1e-5, atol=1e-5)
    for mine, other in zip(parts, theirs, strict=True):
        torch.testing.assert_close(mine.grad.full_tensor().cpu(), other.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_are_torchs_to_refuse():
    """It has attention for them where the device has kernels for theirs: not on the HPU."""
    texts = [torch.randn(num_tokens, 4, 8, device="hpu") for num_tokens in (3, 5)]
    nested = torch.nested.as_nested_tensor(texts, layout=torch.jagged).transpose(1, 2)
    with fused_attention(), pytest.raises(RuntimeError, match="nested tensors they must be"):
        F.scaled_dot_product_attention(nested, nested, nested)


def _two_ranks_of_heads(rank):
    mesh = init_device_mesh("hpu", (2,))
    ours, theirs, mask = qkv(device="hpu"), qkv(), masks()["padding"]
    parts = [distribute_tensor(t.detach(), mesh, [Shard(1)]).requires_grad_() for t in ours]
    settings = {"attn_mask": distribute_tensor(mask.to("hpu"), mesh, [Replicate()])}
    with fused_attention(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            out = F.scaled_dot_product_attention(*parts, **settings)
        with pytest.raises(RuntimeError, match=r"mixed torch.Tensor and DTensor"):
            F.scaled_dot_product_attention(*parts, is_causal=True)
    said = [str(each.message) for each in caught if "not fused" in str(each.message)]
    assert len(said) == 1, said
    assert "the tensors are of a class of their own, such as DTensor" in said[0]
    expected = attend(*theirs, attn_mask=mask)
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    expected.backward(upstream)
    out.backward(distribute_tensor(upstream.to("hpu"), mesh, [Shard(1)]))
    found = [t.full_tensor().cpu() for t in (out, *(part.grad for part in parts))]
    torch.testing.assert_close(found, [expected, *(t.grad for t in theirs)], **CLOSE)


@pytest.mark.slow
def test_dtensors_stay_with_torch_and_say_so_once(tmp_path):
    run_ranks(_two_ranks_of_heads, tmp_path)
