import copy

import pytest
import torch
from transformers import BertConfig, BertModel

from recipes.mrpc.first_token import compute_first_token_alone


@pytest.fixture
def bert():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        initializer_range=0.2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )
    return BertModel(config, add_pooling_layer=False)


def test_the_first_token_and_its_gradients_are_those_of_the_whole_encoder(bert):
    whole = copy.deepcopy(bert)
    hidden = torch.randn(5, 12, 32)
    mask = torch.zeros(5, 1, 1, 12)
    for row, length in enumerate((12, 9, 3, 1, 7)):
        mask[row, ..., length:] = torch.finfo(torch.bfloat16).min
    compute_first_token_alone(bert.encoder)
    ours = bert.encoder(hidden, attention_mask=mask)[0]
    assert ours.shape == (5, 1, 32)
    expected = whole.encoder(hidden, attention_mask=mask)[0][:, :1]
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    direction = torch.randn_like(ours)
    for result in (ours, expected):
        (result * direction).sum().backward()
    for (name, weight), other in zip(bert.named_parameters(), whole.parameters(), strict=True):
        if "encoder" in name:
            torch.testing.assert_close(weight.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_dropout_is_drawn_in_training_only(bert):
    for module in bert.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    compute_first_token_alone(bert.encoder)
    hidden, mask = torch.randn(2, 4, 32), torch.zeros(2, 1, 1, 4)

    def differs():
        first, again = (bert.encoder(hidden, attention_mask=mask)[0] for _ in range(2))
        return not torch.equal(first, again)

    assert differs()
    bert.eval()
    assert not differs()
