"""What users, launchers and schedulers set: variables, configurations, lists of hosts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import yaml
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_gaudi import config_errors
from lightning_gaudi._core.precision import autocast_ops
from lightning_gaudi._core.vendor import importing
from lightning_gaudi.deepspeed.config import load as deepspeed_config
from lightning_gaudi.distributed import cluster, devices
from lightning_gaudi.profiler import HPUProfiler
from lightning_gaudi.reliability import settings, settings as reliability_settings
from lightning_gaudi.simulator import settings as simulator_settings
from lightning_gaudi.simulator.settings import SimulatorError
from lightning_gaudi.strategies import jobs
from lightning_gaudi.tools.audit import process as audit_process
from lightning_gaudi.tools.command_line import (
    catalog,
    environment as cli_environment,
    run as cli_run,
)
from lightning_gaudi.tools.doctor import launchers
from lightning_gaudi.tools.plan import config_program

from . import wild
from .target import Parser, environment, target

_PACKAGE = "lightning_gaudi"
_YAML = """
environment:
  PT_HPU_LAZY_MODE: 1
  LOG_LEVEL_PT: "4"
trainer:
  accelerator: hpu
  devices: 2
  strategy: {class_path: lightning_gaudi.HPUDDPStrategy, init_args: {bucket_cap_mb: 230}}
  callbacks: [&a {class_path: RunGuard}, *a]
model: {lr: 1e-3, optimizer: adamw}
data:
  path: /data/x.csv
"""


@target("reliability.settings")
def _reliability(folder: Path) -> Parser:
    seed = "watchdog=off,async_save=on,watchdog_timeout_s=12.5,save_on_exit=true"

    def damage(random: Any) -> Any:
        if random.random() < 0.3:
            return wild.document(random, {"watchdog": True, "watchdog_timeout_s": 5.0})
        return wild.damaged_text(random, seed.encode()).decode("utf-8", "surrogateescape")

    return Parser(damage, lambda given: reliability_settings.SETTING.parse(given, "RunGuard(...)"))


@target("strategies.jobs", f"{_PACKAGE}.strategies.jobs:find_job")
def _jobs(folder: Path) -> Parser:
    seed = {
        "SLURM_JOB_ID": "17",
        "SLURM_RESTART_COUNT": "1",
        "SLURM_CLUSTER_NAME": "gaudi",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_ERROR_FILE": "/tmp/a/b/c/error.json",
    }
    return Parser(lambda random: wild.environment(random, seed), jobs.find_job)


@target("reliability.trust")
def _trust(folder: Path) -> Parser:
    seed = {
        "LIGHTNING_GAUDI_RELIABILITY": "trust_checkpoints=off",
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "0",
    }

    def parse(given: dict[str, str]) -> object:
        with environment(given):
            return settings.trusted_by()

    return Parser(lambda random: wild.environment(random, seed), parse)


_MPI = {
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "PMIX_NAMESPACE": "job-1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
}


_HYDRA = {
    "PMI_SIZE": "8",
    "PMI_RANK": "3",
    "MPI_LOCALRANKID": "3",
    "MPI_LOCALNRANKS": "4",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}
_SRUN = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8", "SLURM_PROCID": "3", "SLURM_LOCALID": "3"}
_PODS = {"WORLD_SIZE": "8", "RANK": "3", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}


@target(
    "distributed.launchers",
    f"{_PACKAGE}._core.launched:_read",
    f"{_PACKAGE}._core.launched:_is_above",
    *(
        f"{_PACKAGE}.distributed.cluster:{name}"
        for name in (
            *("LauncherEnvironment.detect", "LauncherEnvironment.main_port"),
            *("LauncherEnvironment.world_size", "LauncherEnvironment.global_rank"),
            *("LauncherEnvironment.local_rank", "LauncherEnvironment._local_size"),
            *("HydraEnvironment._local_size", "RankEnvironment.main_port"),
            *("NodeEnvironment.node_rank", "_refuse_without_srun"),
        )
    ),
    errors=(MisconfigurationException, ValueError),
)
def _launchers(folder: Path) -> Parser:
    def damage(random: Any) -> Any:
        return wild.environment(random, random.choice((_MPI, _HYDRA, _PODS, _SRUN)))

    def parse(given: dict[str, str]) -> object:
        with environment(given):
            found = cluster.find_environment(4, 2)
            if found is None:
                return None
            numbers = found.world_size(), found.global_rank(), found.local_rank(), found.node_rank()
            cluster.check_world_size(found, 4, 2)
            return *numbers, found.main_address, found.main_port

    return Parser(damage, parse)


@target(
    "distributed.world_size",
    f"{_PACKAGE}.distributed.cluster:started",
    f"{_PACKAGE}.distributed.cluster:_local_world_size",
    errors=(MisconfigurationException, ValueError),
)
def _world_size(folder: Path) -> Parser:
    def parse(given: dict[str, str]) -> object:
        with environment({**given, "LOCAL_RANK": "0"}):
            found = LightningEnvironment()
            cluster.check_not_alone(found)
            return cluster.check_world_size(found, 4, 2)

    return Parser(lambda random: wild.environment(random, _MPI), parse)


@target("distributed.devices", errors=(MisconfigurationException,))
def _devices(folder: Path) -> Parser:
    def damage(random: Any) -> Any:
        if random.random() < 0.5:
            return wild.damaged_text(random, b"0,1,2").decode("utf-8", "surrogateescape")
        return wild.value(random)

    return Parser(damage, devices.parse_devices)


@target(
    "audit.environment",
    f"{_PACKAGE}.tools.audit.process:install",
    f"{_PACKAGE}.tools.audit.process:_rank",
    f"{_PACKAGE}.profiler.hpu:HPUProfiler._reset",
)
def _audit(folder: Path) -> Parser:
    def parse(given: dict[str, str]) -> object:
        with environment(given):
            return audit_process._rank(), HPUProfiler(dirpath=folder)

    return Parser(lambda random: wild.environment(random, {"RANK": "1", "WORLD_SIZE": "2"}), parse)


@target(
    "simulator.settings",
    f"{_PACKAGE}.simulator.settings:read_workspace_bytes",
    errors=(SimulatorError,),
)
def _simulator(folder: Path) -> Parser:
    seed = {
        simulator_settings.SIMULATE: "8",
        simulator_settings.CARD: "gaudi3",
        simulator_settings.RELEASE: "1.24",
        simulator_settings.RULES: "warn",
        simulator_settings.DRY: "1",
        simulator_settings.CACHE_DIR: str(folder),
        simulator_settings.WORKSPACE: "1",
    }

    def parse(given: dict[str, str]) -> object:
        with environment(given):
            found = simulator_settings.read_settings(), simulator_settings.read_workspace_bytes()
            return found, simulator_settings.read_rule_mode(), simulator_settings.cache_dir()

    return Parser(lambda random: wild.environment(random, seed), parse)


@target(
    "core.autocast_ops",
    f"{_PACKAGE}._core.precision.autocast_ops:_check_file",
    f"{_PACKAGE}._core.precision.autocast_ops:lowers",
)
def _autocast(folder: Path) -> Parser:
    path = folder / "ops.txt"

    def parse(given: bytes) -> object:
        path.write_bytes(given)
        with environment({autocast_ops.VARIABLES[0]: str(path)}):
            autocast_ops.lowers("matmul")
            return autocast_ops.check_op_lists()

    return Parser(lambda random: wild.damaged_text(random, b"matmul\naddmm\nconv2d\n"), parse)


@target(
    "core.vendor.importing",
    f"{_PACKAGE}._core.vendor.importing:given_variables",
    f"{_PACKAGE}._core.vendor.importing:forget_defaults",
    errors=(),
)
def _vendor_import(folder: Path) -> Parser:
    seed = {"LOCAL_RANK": "1", "HLS_MODULE_ID": "1", "MASTER_PORT": "12345"}

    def parse(given: dict[str, str]) -> object:
        with environment(given):
            importing.given_variables(is_new=False)
            return importing.forget_defaults(set(), None)

    return Parser(lambda random: wild.environment(random, seed), parse)


@target(
    "config_errors",
    f"{_PACKAGE}.config_errors:syntax_error",
    f"{_PACKAGE}.config_errors:_keys",
    errors=(),
)
def _config_errors(folder: Path) -> Parser:
    path = folder / "config.yaml"

    def parse(given: bytes) -> object:
        path.write_bytes(given)
        with config_errors.parsing(argparse.ArgumentParser(), ["fit", "--config", str(path)]):
            found = config_errors.syntax_error()
            message = 'Key "trainer.devices" is not expected'
            return found, config_errors.unknown_setting(message, ["trainer.device"])

    return Parser(lambda random: wild.damaged_text(random, _YAML.encode()), parse)


@target("config_errors.instead", errors=())
def _instead(folder: Path) -> Parser:
    seed = b"'lightning_gaudi.callbacks.RunGuard': 'watchdgo' is not accepted"

    def damage(random: Any) -> tuple[str, str]:
        given = wild.damaged_text(random, seed).decode("utf-8", "surrogateescape")
        path, _, problem = given.partition(": ")
        return path.strip("'")[:200], problem

    return Parser(damage, lambda given: config_errors.instead(*given))


@target(
    "command_line.environment",
    *(
        f"{_PACKAGE}.tools.command_line.environment:{name}"
        for name in ("_parsed", "_of_file", "_operators", "_is_own_copy")
    ),
    errors=(catalog.UsageError,),
)
def _environment(folder: Path) -> Parser:
    path = folder / "config.yaml"
    ops = folder / "ops.txt"
    ops.write_text("matmul\n")
    seed = f"{_YAML}# PT_HPU_AUTOCAST_FP32_OPS_LIST: ops.txt\n".replace("# PT", "PT")
    names = set(yaml.safe_load(_YAML)["environment"])

    def parse(given: bytes) -> object:
        path.write_bytes(given)
        wanted, typed, origin = cli_environment._read(["fit", "--config", str(path)])
        for name, value in {**wanted, **typed}.items():
            cli_environment._check(name, value, origin)
        return names

    return Parser(lambda random: wild.damaged_text(random, seed.encode()), parse)


@target("command_line.environment.typed", errors=(catalog.UsageError,))
def _typed(folder: Path) -> Parser:
    def damage(random: Any) -> list[str]:
        seed = b'{"PT_HPU_LAZY_MODE": 1, "HABANA_LOGS": "/tmp"}'
        given = wild.damaged_text(random, seed).decode("utf-8", "surrogateescape")
        return ["fit", random.choice((f"--environment={given}", f"--config={given}"))]

    def parse(given: list[str]) -> object:
        wanted, typed, origin = cli_environment._read(given)
        for name, value in {**wanted, **typed}.items():
            cli_environment._check(name, value, origin)
        return None

    return Parser(damage, parse)


@target("command_line.run", f"{_PACKAGE}.tools.command_line.run:_trainer_settings", errors=())
def _run(folder: Path) -> Parser:
    path = folder / "config.yaml"

    def damage(random: Any) -> tuple[bytes, str]:
        devices_ = wild.damaged_text(random, b"[0, 1]").decode("utf-8", "surrogateescape")
        return wild.damaged_text(random, _YAML.encode()), devices_

    def parse(given: tuple[bytes, str]) -> object:
        path.write_bytes(given[0])
        arguments = ["fit", "--config", str(path)]
        if hash(given[1]) % 2:
            arguments += ["--trainer.devices", given[1]]
        found = cli_run._trainer_settings(arguments)
        return cli_run._num_cards(found.get("devices"))

    return Parser(damage, parse)


@target(
    "command_line.catalog",
    f"{_PACKAGE}.tools.command_line.catalog:_read_configuration",
    errors=(catalog.UsageError,),
)
def _catalog(folder: Path) -> Parser:
    path = folder / "a.yaml"
    seed = b"# A run. More of it.\n#\n# Needs: a card.\n\n# Other: word\nkey: 1\n"

    def parse(given: bytes) -> object:
        path.write_bytes(given)
        return catalog._read_configuration(path, folder)

    return Parser(lambda random: wild.damaged_text(random, seed), parse)


@target(
    "plan.config_program",
    f"{_PACKAGE}.tools.plan.config_program:main",
    f"{_PACKAGE}.tools.plan.config_program:_read",
    errors=(SystemExit,),
    foreign=(SystemExit,),  # `sys.exit` is noted on its way
)
def _config_program(folder: Path) -> Parser:
    path = folder / "config.yaml"

    class StartedError(Exception):
        """The LightningCLI would begin."""

    def start(name: str) -> Any:
        raise StartedError

    config_program.import_module = start  # type: ignore[assignment]

    def parse(given: bytes) -> object:
        path.write_bytes(given)
        try:
            return config_program.main(path)
        except StartedError:
            return None

    return Parser(
        lambda random: wild.damaged_text(random, b"fit:" + _YAML.replace("\n", "\n  ").encode()),
        parse,
    )


_DEEPSPEED: dict[str, Any] = {
    "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": "auto"},
    "bf16": {"enabled": True},
    "fp16": {"enabled": False, "loss_scale": 0},
    "train_micro_batch_size_per_gpu": 4,
    "train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.99]}},
    "scheduler": {"type": "WarmupLR", "params": {"total_num_steps": "auto"}},
    "timers": {"throughput": {"enabled": False}},
}


@target(
    "deepspeed.config",
    f"{_PACKAGE}.deepspeed.config.load:_parse",
    errors=(ValueError, MisconfigurationException, FileNotFoundError),
)
def _deepspeed(folder: Path) -> Parser:
    paths = folder / "config.json", folder / "config.yaml"

    def damage(random: Any) -> tuple[bool, bytes]:
        if random.random() < 0.8:
            return False, wild.json_text(random, _DEEPSPEED)
        return True, wild.damaged_text(random, yaml.safe_dump(_DEEPSPEED).encode())

    def parse(given: tuple[bool, bytes]) -> object:
        path = paths[given[0]]
        path.write_bytes(given[1])
        found = deepspeed_config.read(path, "LIGHTNING_GAUDI_DEEPSPEED")
        assert found is not None
        known = deepspeed_config.Settings("bf16-mixed", 2, 1, 1.0, num_steps=lambda: 10)
        return deepspeed_config.complete(found, known)

    return Parser(damage, parse)


@target(
    "deepspeed.config.keys",
    errors=(ValueError, MisconfigurationException),
    num_quick=13,
)
def _deepspeed_keys(folder: Path) -> Parser:
    from lightning_gaudi.deepspeed.config import validation

    validation.check_keys({})

    def parse(given: Any) -> object:
        return validation.check_keys(given) if isinstance(given, dict) else None

    return Parser(lambda random: wild.document(random, _DEEPSPEED), parse)


@target("doctor.launchers", f"{_PACKAGE}.tools.doctor.launchers:_texts", errors=())
def _launchers(folder: Path) -> Parser:
    path = folder / "hosts"
    seeds = (b"gaudi1 slots=8\ngaudi2 # off\n\ngaudi[1-3,5],a:2\n", b"gaudi[01-12,15],a:8,10.0.0.1")

    def damage(random: Any) -> tuple[bytes, str]:
        file, option = (wild.damaged_text(random, seed) for seed in seeds)
        return file, option.decode("utf-8", "surrogateescape")

    def parse(given: tuple[bytes, str]) -> object:
        path.write_bytes(given[0])
        return launchers.named_hosts(["mpirun", "--hostfile", str(path), "-H", given[1]])

    return Parser(damage, parse)


@target("doctor.place", f"{_PACKAGE}.tools.doctor.launchers:place", errors=())
def _place(folder: Path) -> Parser:
    seed = {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "SLURM_PROCID": "1"}
    return Parser(lambda random: wild.environment(random, seed), launchers.place)
