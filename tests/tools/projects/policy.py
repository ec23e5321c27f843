"""A policy that samples its actions, and learns of what they bring."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.distributions import Categorical, Normal
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics import MeanMetric, SumMetric


class Starts(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.randn(4)


class Policy(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh())
        self.actor, self.critic = nn.Linear(64, 3), nn.Linear(64, 1)
        self.mean = nn.Linear(64, 2)
        self.log_std = nn.Parameter(torch.zeros(2))
        self.reward, self.num_ended = MeanMetric(), SumMetric()

    def training_step(self, state, batch_idx):
        log_probs, values, rewards, entropies = [], [], [], []
        is_running = torch.ones(len(state), dtype=torch.bool, device=self.device)
        for _ in range(6):
            hidden = self.body(state)
            which, how = (
                Categorical(logits=self.actor(hidden)),
                Normal(self.mean(hidden), self.log_std.exp()),
            )
            action, push = which.sample(), how.rsample()
            log_probs.append(which.log_prob(action) + how.log_prob(push.detach()).sum(-1))
            entropies.append(which.entropy())
            values.append(self.critic(hidden)[:, 0])
            state = state + 0.1 * (action - 1)[:, None] + 0.1 * push.repeat(1, 2).detach()
            is_running = is_running & (state.abs().amax(dim=1) < 3)
            rewards.append(is_running.float())
            if not is_running.any():
                break
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
        advantage = returns - torch.stack(values)
        self.reward(returns[0])
        self.num_ended((~is_running).sum())
        self.log_dict({"reward": self.reward, "ended": self.num_ended})
        loss = -(torch.stack(log_probs) * advantage.detach()).mean() + advantage.square().mean()
        return loss - 0.01 * torch.stack(entropies).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-4)


if __name__ == "__main__":
    trainer = pl.Trainer(accelerator="hpu", devices=1, max_steps=10)
    trainer.fit(Policy(), DataLoader(Starts(), 32))
