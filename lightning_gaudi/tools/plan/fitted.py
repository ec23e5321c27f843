"""What public runs say of the cards: written by `python -m scripts.step_times.fit`."""

from __future__ import annotations

from collections.abc import Mapping

from lightning_gaudi.tools.plan.request import Counted
from lightning_gaudi.tools.plan.step_times import Fit, Later

FITS: Mapping[tuple[str, str], Fit] = {
    ("training", "gaudi1"): Fit(
        rates={
            "operations": 1.813e-14,
            "memory": 1.587e-12,
            "reduced": 1.271e-11,
            "reduced and gathered": 5.181e-11,
        },
        low=0.8865,
        high=1.21,
        least={
            "operations of a batch": 2544000000000.0,
            "operations for each byte that is moved": 51.87,
        },
        most={
            "operations of a batch": 429800000000000.0,
            "operations for each byte that is moved": 433.6,
        },
        num_figures=25,
        num_models=9,
        releases=("1.11", "1.18"),
        median_error=0.06568,
        share_within=0.88,
    ),
    ("training", "gaudi2"): Fit(
        rates={
            "operations": 2.935e-15,
            "memory": 4.333e-13,
            "reduced": 3.1e-12,
            "reduced and gathered": 6.69e-12,
        },
        low=0.8466,
        high=1.373,
        least={
            "operations of a batch": 6784000000000.0,
            "operations for each byte that is moved": 62.29,
        },
        most={
            "operations of a batch": 4924000000000000.0,
            "operations for each byte that is moved": 645.1,
        },
        num_figures=30,
        num_models=16,
        releases=("1.15", "1.20"),
        median_error=0.1504,
        share_within=0.8667,
    ),
    ("training", "gaudi3"): Fit(
        rates={
            "operations": 1.947e-15,
            "memory": 2.678e-13,
            "reduced": 1.46e-12,
            "reduced and gathered": 2.66e-12,
        },
        low=0.7873,
        high=1.718,
        least={
            "operations of a batch": 23660000000000.0,
            "operations for each byte that is moved": 95.58,
        },
        most={
            "operations of a batch": 4924000000000000.0,
            "operations for each byte that is moved": 645.1,
        },
        num_figures=18,
        num_models=10,
        releases=("1.20", "1.20"),
        median_error=0.07192,
        share_within=0.6667,
    ),
    ("decoding", "gaudi1"): Fit(
        rates={
            "weights": 1.546e-12,
            "layers": 0.0,
            "tokens": 0.002868,
        },
        low=0.9173,
        high=1.248,
        least={
            "weights": 1820000000.0,
            "operations for each byte of weights": 1.0,
        },
        most={
            "weights": 30930000000.0,
            "operations for each byte of weights": 1.0,
        },
        num_figures=14,
        num_models=14,
        releases=("1.19", "1.22"),
        median_error=0.04236,
        share_within=1.0,
    ),
    ("decoding", "gaudi2"): Fit(
        rates={
            "weights": 4.509e-13,
            "layers": 3.117e-05,
            "tokens": 0.0007153,
        },
        low=0.9108,
        high=1.159,
        least={
            "weights": 1820000000.0,
            "operations for each byte of weights": 1.0,
        },
        most={
            "weights": 82600000000.0,
            "operations for each byte of weights": 4.0,
        },
        num_figures=31,
        num_models=30,
        releases=("1.19", "1.22"),
        median_error=0.06395,
        share_within=0.9355,
    ),
    ("decoding", "gaudi3"): Fit(
        rates={
            "weights": 3.347e-13,
            "layers": 2.993e-05,
            "tokens": 0.001208,
        },
        low=0.8594,
        high=1.243,
        least={
            "weights": 1820000000.0,
            "operations for each byte of weights": 1.0,
        },
        most={
            "weights": 82600000000.0,
            "operations for each byte of weights": 4.0,
        },
        num_figures=26,
        num_models=25,
        releases=("1.22", "1.22"),
        median_error=0.0816,
        share_within=0.9231,
    ),
    ("decoding on several cards", "gaudi2"): Fit(
        rates={
            "weights": 4.118e-13,
            "layers": 6.428e-06,
            "tokens": 0.008029,
        },
        low=0.9686,
        high=1.033,
        least={
            "weights": 2310000000.0,
            "operations for each byte of weights": 1.0,
        },
        most={
            "weights": 71460000000.0,
            "operations for each byte of weights": 1.0,
        },
        num_figures=7,
        num_models=7,
        releases=("1.19", "1.20"),
        median_error=0.01891,
        share_within=1.0,
    ),
    ("decoding on several cards", "gaudi3"): Fit(
        rates={
            "weights": 2.393e-13,
            "layers": 5.546e-06,
            "tokens": 0.01403,
        },
        low=0.7507,
        high=1.256,
        least={
            "weights": 2310000000.0,
            "operations for each byte of weights": 1.0,
        },
        most={
            "weights": 71460000000.0,
            "operations for each byte of weights": 1.0,
        },
        num_figures=7,
        num_models=7,
        releases=("1.20", "1.20"),
        median_error=0.1558,
        share_within=0.7143,
    ),
}
"""By kind and card."""

LATER: Mapping[tuple[str, str, str], Later] = {
    ("gaudi_1x", "Gaudi", "train_samples_per_s"): Later(172.792, "1.15"),
    ("bloomz_7b_1x", "Gaudi", "latency_seconds"): Later(2.3949, "1.20"),
    ("bloomz_7b_1x", "Gaudi 2", "latency_seconds"): Later(0.769, "1.20"),
    ("bloomz_7b_8x", "Gaudi", "latency_seconds"): Later(3.1256, "1.20"),
    ("bloomz_176b_8x", "Gaudi 2", "latency_seconds"): Later(2.7194, "1.20"),
}
"""By run, hardware and figure. Source: scripts/step_times/later.csv."""

REFERENCES: Mapping[str, Counted] = {
    "BERT-large": Counted(
        flops=17668119724032,
        fused_bytes=239979502986,
        product_bytes=87404096744,
        weight_bytes=0,
        num_attentions=24,
        num_cross_attentions=0,
        num_passes=0,
        flops_of={"bfloat16": 17668119724032},
        is_trained=True,
    ),
    "LoRA": Counted(
        flops=17810424070144,
        fused_bytes=66621501592,
        product_bytes=25908936704,
        weight_bytes=3980591104,
        num_attentions=16,
        num_cross_attentions=0,
        num_passes=2,
        flops_of={"bfloat16": 17810424070144},
        is_trained=True,
    ),
    "decoding": Counted(
        flops=222860673024,
        fused_bytes=222587592066,
        product_bytes=208309649096,
        weight_bytes=207722905600,
        num_attentions=1600,
        num_cross_attentions=1600,
        num_passes=100,
        flops_of={"bfloat16": 222860673024},
        is_trained=False,
    ),
}
"""What the steps of `lightning-gaudi verify` count."""
