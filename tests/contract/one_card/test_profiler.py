"""`HPUProfiler` on the card. What a trace shows of the device is up to torch and the vendor."""

from __future__ import annotations

import json
from pathlib import Path

from lightning_gaudi import HPUProfiler
from tests.helpers.tiny import TinyModule, batches, hpu_trainer

NUM_STEPS = 8


def test_a_profile_counts_the_steps_and_writes_a_trace(tmp_path: Path) -> None:
    profiler = HPUProfiler(dirpath=tmp_path, filename="profile")
    trainer = hpu_trainer(profiler=profiler, max_epochs=1, default_root_dir=tmp_path)
    trainer.fit(TinyModule(), batches(NUM_STEPS))
    summary = profiler.summary()
    assert summary.startswith(f"HPU profile of {NUM_STEPS} training steps")
    assert "step on the host" in summary
    (trace,) = tmp_path.glob("*.pt.trace.json")
    events = json.loads(trace.read_text())["traceEvents"]
    assert any(event.get("name", "").startswith("ProfilerStep#") for event in events)
