import torch

samples = [{"input_ids": [1] * length} for length in torch.randint(5, 60, (400,)).tolist()]
