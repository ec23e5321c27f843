import torch

from tests.helpers.diffusion import make_pipeline

pipeline = make_pipeline("sd1")
embeddings = torch.randn(6, 4, pipeline.unet.config.cross_attention_dim).to("hpu")
