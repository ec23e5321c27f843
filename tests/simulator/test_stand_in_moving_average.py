"""The fused moving average of a model against its formula in fp64."""

from __future__ import annotations

import math

import pytest
import torch
from habana_frameworks.torch.hpex.movingavrg import FusedEMA
from torch import nn

NUM_UPDATES = 4


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).to("hpu")


def _values(model):
    return {name: value.cpu().double() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("updates", [0, 1000])
def test_average_follows_the_model_faster_at_first(updates):
    model = _model()
    average = FusedEMA(model, decay=0.9, updates=updates)
    expected = _values(model)
    batches = torch.randn(NUM_UPDATES, 5, 3).to("hpu")
    for t, batch in enumerate(batches, start=updates + 1):
        with torch.no_grad():
            model(batch)
            for parameter in model.parameters():
                parameter.mul_(-1.5)
        average.update(model)
        d = 0.9 * (1 - math.exp(-t / 2000))
        for name, value in _values(model).items():
            expected[name] = d * expected[name] + (1 - d) * value
            if name.endswith("num_batches_tracked"):
                expected[name].trunc_()
    assert average.updates == updates + NUM_UPDATES
    # fp32 against fp64.
    torch.testing.assert_close(_values(average.ema), expected, rtol=1e-5, atol=1e-6)


def test_average_is_an_evaluating_copy_that_takes_attributes():
    model = _model().train()
    model.names, model.reducer, model.stride = ["a"], object(), 32
    average = FusedEMA(nn.DataParallel(model))
    assert type(average.ema) is nn.Sequential
    assert not average.ema.training
    assert average.ema[0].weight is not model[0].weight
    model.names, model.stride = ["b"], 64
    average.update_attr(model, include=("stride", "reducer"))
    assert (average.ema.names, average.ema.stride) == (["a"], 64)
    average.update_attr(model)
    assert average.ema.names == ["b"]


def test_update_waits_for_nothing_and_negative_decay_is_refused():
    average = FusedEMA(model := _model())
    with torch.hpu.metric_localcontext("host_sync") as metric:
        average.update(model)
    assert dict(metric.stats())["TotalNumber"] == 0
    with pytest.raises(ValueError, match=r"decay=-0.1 must be at least 0"):
        FusedEMA(model, decay=-0.1)
