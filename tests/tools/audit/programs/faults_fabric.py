"""A loop on Fabric with eight faults; the lines name the rules that they meet."""

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader

VOCABULARY = 50


def sentences(count):
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 60, (count,), generator=draw).tolist()
    return [torch.randint(1, VOCABULARY, (length,), generator=draw) for length in lengths]


def pad(rows):
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.layers = nn.Sequential(*(nn.Linear(16, 16) for _ in range(8)))
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, tokens):
        return self.head(torch.tanh(self.layers(self.embedding(tokens))))  # uncompiled


def main():
    fabric = Fabric(accelerator="hpu", devices=1)
    fabric.launch()
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    model, optimizer = fabric.setup(model, optimizer)
    rows = sentences(400)
    batches = DataLoader(rows, 4, collate_fn=pad, num_workers=1)  # dynamic-shapes fork-beside-card
    losses = []
    for tokens in batches:
        tokens = tokens.to(fabric.device)  # copy-to-card-blocks
        logits = model(tokens[:, :-1])
        kept = tokens[:, 1:] != 0
        loss = nn.functional.cross_entropy(logits[kept], tokens[:, 1:][kept])  # mask-index-dynamic
        scale = torch.ones((), dtype=torch.float64, device=fabric.device)  # float64-demoted
        worst = logits.detach().amax(-1).cummax(1).values  # cummax-on-cpu
        fabric.backward(loss * scale.float() + 0 * worst.sum())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())  # item-waits
    print("trained to the end")


if __name__ == "__main__":
    main()
