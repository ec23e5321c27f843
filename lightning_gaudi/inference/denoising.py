"""Makes pictures from noise by diffusers' UNet and scheduler, without a wait for the device.

Only the UNet is captured as an HPU graph, or compiled; the scheduler is diffusers' own. It keeps
its timesteps on the CPU, where they are read without waiting. The UNet takes them from a tensor on
the device that is rolled from step to step, so that every step is the same graph.

Shapes: B pictures, C channels of latents, h x w their height and width, T tokens, D hidden.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from lightning_gaudi._core import vendor
from lightning_gaudi._core.memory import tags as memory_tags
from lightning_gaudi._core.wording import did_you_mean

from .engine import Engine, Runner, resolve

__all__ = ["SCHEDULERS", "Denoiser", "denoise", "draw_latents", "make_scheduler"]

Scheduler: TypeAlias = Any
"""A scheduler of diffusers, whose common class declares none of their methods."""
SCHEDULERS: Final = {
    "ddim": "DDIMScheduler",
    "ddpm": "DDPMScheduler",
    "dpm++": "DPMSolverMultistepScheduler",
    "euler": "EulerDiscreteScheduler",
    "euler_ancestral": "EulerAncestralDiscreteScheduler",
    "heun": "HeunDiscreteScheduler",
    "lms": "LMSDiscreteScheduler",
    "pndm": "PNDMScheduler",
}
"""The schedulers that never wait for the device: diffusers' class of each, by name."""


def make_scheduler(name: str | None, config: Mapping[str, Any]) -> Scheduler:
    """Returns a scheduler of diffusers.

    Args:
        name: one of `SCHEDULERS`; None for the one that the model was published with.
        config: of the model's own scheduler (scheduler_config.json): the noise of its training,
            whether it predicts noise or velocity, and the name of its class.

    Raises:
        ValueError: for another name, and where the model's own class is none of these.
    """
    import diffusers

    if name is None:
        published = str(config.get("_class_name", "no class"))
        if published not in SCHEDULERS.values():
            raise ValueError(
                f"The model's own scheduler, {published}, is none that works without waiting for "
                f"the device. Name one of: {', '.join(SCHEDULERS)}."
            )
        kind = published
    elif name in SCHEDULERS:
        kind = SCHEDULERS[name]
    else:
        meant = did_you_mean(name, SCHEDULERS, 0.4)
        raise ValueError(
            f"There is no scheduler {name!r}.{meant} There are: {', '.join(SCHEDULERS)}."
        )
    known = inspect.signature(getattr(diffusers, kind).__init__).parameters
    # The configuration of another scheduler has names that this one would warn about.
    return getattr(diffusers, kind)(**{key: value for key, value in config.items() if key in known})


def draw_latents(
    seeds: Sequence[int], shape: Sequence[int]
) -> tuple[Tensor, list[torch.Generator]]:
    """Draws the noise of each picture by its own seed, so that a batch never changes a picture.

    It draws on the CPU, since the same seed gives other numbers on another device.

    Args:
        seeds: one a picture (B).
        shape: of a picture's latents: (C, h, w).

    Returns:
        float32 [B, C, h, w]; and the generators, for schedulers that draw more.
    """
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    drawn = [torch.randn(1, *shape, generator=g, dtype=torch.float32) for g in generators]
    return torch.cat(drawn), generators


class Denoiser:
    """Runs a UNet and a scheduler, and keeps what is captured or compiled from batch to batch.

    Args:
        unet: diffusers' UNet2DConditionModel in evaluation mode, on its device.
        scheduler: see `make_scheduler`.
        num_steps: of denoising.
        guidance: how much further than without a prompt the prompt leads (classifier-free
            guidance). 1 leaves the pass without a prompt out.
        engine: see `Engine`.

    Raises:
        ValueError: for fewer than one step, and an engine that the device does not have.
    """

    def __init__(
        self,
        unet: nn.Module,
        scheduler: Scheduler,
        num_steps: int,
        guidance: float = 7.5,
        engine: Engine = "auto",
    ) -> None:
        if num_steps < 1:
            raise ValueError(f"num_steps must be at least 1, but is {num_steps}.")
        self.unet, self.scheduler = unet, scheduler
        self.num_steps, self.guidance = num_steps, guidance
        self.engine = resolve(engine, next(unet.parameters()).device, unet)
        self._runners: dict[tuple[Any, ...], tuple[Runner, list[Tensor]]] = {}
        self._draws_noise = "generator" in inspect.signature(scheduler.step).parameters
        self._current: list[weakref.ref[Tensor]] = []
        memory_tags.declare(self, "latents", Denoiser._held_latents)

    @property
    def is_guided(self) -> bool:
        """Whether a step computes each picture without its prompt, too."""
        return self.guidance != 1.0

    @torch.no_grad()
    def __call__(
        self,
        latents: Tensor,
        embeddings: Tensor,
        added: Mapping[str, Tensor] | None = None,
        generators: list[torch.Generator] | None = None,
    ) -> Tensor:
        """Makes pictures' latents from noise.

        Args:
            latents: noise [B, C, h, w] on the UNet's device, see `draw_latents`.
            embeddings: of the prompts, [2 B, T, D], those of the negative prompts first; [B, T, D]
                without guidance.
            added: further conditions of the UNet, SDXL's text_embeds and time_ids; likewise.
            generators: one a picture, on the CPU, for schedulers that draw noise in each step.

        Returns:
            float32 [B, C, h, w].
        """
        added = dict(added or {})
        self._check(latents, embeddings, added, generators)
        scheduler = self.scheduler
        scheduler.set_timesteps(self.num_steps, device="cpu")
        # Rolled and not indexed, since another place in a tensor would be another graph.
        timesteps = scheduler.timesteps.to(latents.device)
        runner = self._runner(latents, embeddings, added)
        noise_source = {"generator": generators} if self._draws_noise and generators else {}
        latents = latents.float() * scheduler.init_noise_sigma
        self._cut(latents)
        for step in scheduler.timesteps:
            noise = runner(scheduler.scale_model_input(latents, step), timesteps[:1])
            # A graph's result is overwritten by the next step, and some schedulers keep it.
            noise = noise.to(torch.float32, copy=runner.engine == "graph")
            self._current = [weakref.ref(latents), weakref.ref(noise)]
            latents = scheduler.step(noise, step, latents, return_dict=False, **noise_source)[0]
            timesteps = timesteps.roll(-1)
            self._cut(latents)
        self._current = [weakref.ref(latents)]
        return latents

    def _held_latents(self) -> list[Any]:
        """Returns the latents, their noise, and what the scheduler keeps of earlier steps."""
        return [*(each() for each in self._current), *vars(self.scheduler).values()]

    def _runner(self, latents: Tensor, embeddings: Tensor, added: dict[str, Tensor]) -> Runner:
        """Returns what computes the guided noise of batches of these shapes and conditions."""
        conditions = [embeddings, *added.values()]
        key = tuple((each.shape, each.dtype) for each in (latents, *conditions))
        if key not in self._runners:
            # Tensors of our own, since a captured graph reads from the same addresses each time.
            held = [torch.empty_like(each) for each in conditions]
            self._runners[key] = (self._make_runner(held, list(added)), held)
        runner, held = self._runners[key]
        for ours, theirs in zip(held, conditions, strict=True):
            ours.copy_(theirs)
        return runner

    def _make_runner(self, held: list[Tensor], names: list[str]) -> Runner:
        embeddings, *rest = held
        added = dict(zip(names, rest, strict=True)) or None
        unet, guidance, is_guided = self.unet, self.guidance, self.is_guided
        dtype = next(unet.parameters()).dtype

        def step(latents: Tensor, timestep: Tensor) -> Tensor:
            inputs = latents.to(dtype)
            inputs = torch.cat([inputs, inputs]) if is_guided else inputs
            noise: Tensor = unet(
                inputs,
                timestep.expand(len(inputs)),
                embeddings,
                added_cond_kwargs=added,
                return_dict=False,
            )[0]
            if not is_guided:
                return noise
            without, prompted = noise.chunk(2)
            return without + guidance * (prompted - without)

        return Runner(step, self.engine, device=embeddings.device)

    def _check(
        self,
        latents: Tensor,
        embeddings: Tensor,
        added: Mapping[str, Tensor],
        generators: list[torch.Generator] | None,
    ) -> None:
        rows = len(latents) * (2 if self.is_guided else 1)
        for name, tensor in {"embeddings": embeddings, **added}.items():
            if len(tensor) != rows:
                raise ValueError(
                    f"{name} has {len(tensor)} rows, but {len(latents)} pictures at "
                    f"guidance={self.guidance} need {rows}: with guidance, those without the "
                    "prompt and then those with it."
                )
        if generators is not None and len(generators) != len(latents):
            raise ValueError(
                f"There are {len(generators)} generators for {len(latents)} pictures. Give as many."
            )

    @staticmethod
    def _cut(latents: Tensor) -> None:
        """Ends the graph, so that in lazy mode each step is one graph, and always the same."""
        if latents.device.type == "hpu":
            vendor.mark_step()


def denoise(
    unet: nn.Module,
    scheduler: Scheduler,
    latents: Tensor,
    embeddings: Tensor,
    num_steps: int,
    guidance: float = 7.5,
    *,
    added: Mapping[str, Tensor] | None = None,
    generators: list[torch.Generator] | None = None,
    engine: Engine = "auto",
) -> Tensor:
    """Makes latents from noise once; for several batches, make a `Denoiser`, which keeps graphs.

    Args:
        unet: see `Denoiser`, as scheduler, num_steps, guidance and engine.
        scheduler: see `make_scheduler`.
        latents: noise [B, C, h, w], see `draw_latents`.
        embeddings: [2 B, T, D], those of the negative prompts first; [B, T, D] at guidance 1.
        num_steps: of denoising.
        guidance: 1 leaves the pass without a prompt out.
        added: SDXL's text_embeds and time_ids.
        generators: one a picture.
        engine: graph, compile, none or auto.

    Returns:
        float32 [B, C, h, w].
    """
    denoiser = Denoiser(unet, scheduler, num_steps, guidance, engine)
    return denoiser(latents, embeddings, added, generators)
