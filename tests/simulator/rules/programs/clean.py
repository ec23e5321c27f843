"""What all the others could be: float32, fixed shapes, values read once."""

import torch
from torch.nn import functional

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Embedding(50, 16),
    torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True),
    torch.nn.Linear(16, 50),
).to("hpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tokens = torch.randint(1, 50, (4, 12)).to("hpu")
labels = torch.where(tokens > 5, tokens, -100)
losses = []
for _ in range(3):
    with torch.autocast("hpu", torch.bfloat16):
        logits = model(tokens)
    loss = functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.detach())
print(torch.stack(losses).tolist())
