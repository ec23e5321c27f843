"""What a YAML file may set in the environment of a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import yaml

from lightning_gaudi._core.precision import autocast_ops
from lightning_gaudi.tools.command_line import catalog, environment, environment_names

ROOT = Path(__file__).parents[2]
LIST = autocast_ops.VARIABLES[0]

LOADS_CODE = (
    *("LIGHTNING_GAUDI_CACHE_DIR", "GC_KERNEL_PATH", "HABANA_PLUGINS_LIB_PATH", "PYTHONPATH"),
    *("HABANA_SCAL_BIN_PATH", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_HOME"),
    *("HF_HOME", "HF_MODULES_CACHE", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONSTARTUP", "CXX"),
    *("PATH", "PT_RECIPE_CACHE_PATH", "HF_DATASETS_CACHE", "TRITON_CACHE_DIR"),
)
TRUSTS = (
    *("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "HF_DATASETS_TRUST_REMOTE_CODE", "HF_TOKEN"),
    *("HF_ENDPOINT", "HF_HUB_DISABLE_SSL_VERIFY", "HABANA_PROXY"),
)
OTHERS = (
    *("TORCH_LOGS_OUT", "PT_TOWL_LOG_CONFIG", "LIGHTNING_GAUDI_AUDIT", "LIGHTNING_GAUDI_AUTOLOAD"),
    *("LIGHTNING_GAUDI_TEST_ON", "PT_HPU_GRAPH_DUMP_PREFIX", "PT_CACHE_FOLDER_DELETE", "HOME"),
    *(
        "LIGHTNING_GAUDI_SIMULATE",
        "PT_HPU_LAZY_MODE ",
        "pt_hpu_lazy_mode",
        "",
        "A=B",
        "A\0",
        "a\x1b[2J",
    ),
)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    for name in environment_names.VALUES:
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def _set(folder: Path, name: str, value: object) -> None:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({"environment": {name: value}}))
    environment.set_environment(["fit", "--config", str(path)])


@pytest.mark.parametrize("name", [*LOADS_CODE, *TRUSTS, *OTHERS])
def test_other_names_are_refused_and_the_shell_is_named(tmp_path: Path, name: str) -> None:
    before = dict(os.environ)
    with pytest.raises(catalog.UsageError) as raised:
        _set(tmp_path, name, "/tmp/x")
    assert dict(os.environ) == before
    assert "\x1b" not in str(raised.value)
    assert "\n" not in str(raised.value)
    message = str(raised.value)
    if name in LOADS_CODE:
        assert "may set: it says where code or data are loaded from. Set it where you" in message
    elif name in TRUSTS:
        assert "may set: it says what is trusted. Set it where you start the program" in message
    else:
        assert "Set it where you start the program" in message or "Did you mean" in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LIGHTNING_GAUDI_RELIABILITY", "trust_checkpoints=on"),
        ("LIGHTNING_GAUDI_RELIABILITY", "watchdog=off, trust_checkpoints = TRUE"),
        ("LIGHTNING_GAUDI_RELIABILITY", "trust_checkpoints"),
        ("LIGHTNING_GAUDI_RELIABILITY", "trust_checkpoints=off,trust_checkpoints=1"),
        ("LIGHTNING_GAUDI_RELIABILITY", "on\n"),
        ("PT_HPU_RECIPE_CACHE_CONFIG", "/home/me,true,1024"),
        ("PT_HPU_RECIPE_CACHE_CONFIG", "/home/me,TRUE"),
        ("PT_HPU_RECIPE_CACHE_CONFIG", "/home/me,1,1,false"),
        ("PT_HPU_LAZY_MODE", "1\0"),
        ("PT_HPU_LAZY_MODE", "/tmp/x"),
        ("OMP_NUM_THREADS", "$(id)"),
        ("HABANA_LOGS", "a\x1b[2J"),
        ("HCCL_SOCKET_IFNAME", "eth0;id"),
    ],
)
def test_values_that_trust_delete_or_mean_nothing_are_refused(
    tmp_path: Path, name: str, value: str
) -> None:
    with pytest.raises(catalog.UsageError, match=f"environment.{name} of --config") as raised:
        _set(tmp_path, name, value)
    assert name not in os.environ
    assert "\x1b" not in str(raised.value)
    assert "\0" not in str(raised.value)


def test_what_the_shell_trusts_stays_and_is_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, mine = "LIGHTNING_GAUDI_RELIABILITY", "trust_checkpoints=on"
    monkeypatch.setenv(name, mine)
    path = tmp_path / "mine.yaml"
    path.write_text(f"environment: {{{name}: 'watchdog=off'}}")
    for_ranks = environment.set_environment(["fit", "--config", str(path)])
    assert os.environ[name] == mine
    assert environment.set_environment(for_ranks[-1:]) == [*for_ranks[-1:], for_ranks[-1]]


def test_published_configurations_name_what_is_allowed() -> None:
    paths = [*ROOT.glob("recipes/**/*.yaml"), *ROOT.glob("examples/**/*.yaml")]
    found = {}
    for path in paths:
        settings = yaml.safe_load(path.read_text())
        if isinstance(settings, dict) and isinstance(settings.get("environment"), dict):
            found |= settings["environment"]
    assert len(found) >= 5
    for name, value in found.items():
        assert environment_names.why_refused(name) is None
        assert environment_names.why_wrong(name, str(value)) is None


def test_a_file_that_is_no_list_is_not_copied_to_where_others_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        autocast_ops, "is_read_from", lambda path: not str(path).startswith(str(tmp_path / "home"))
    )
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "shared"))
    for name in ("home", "shared"):
        (tmp_path / name).mkdir()
    secret = tmp_path / "home" / "id_rsa"
    for content in (b"-----BEGIN PRIVATE KEY-----\n", b"\xff\xfe", b"x" * 300, b"x\n" * 1_000_000):
        secret.write_bytes(content)
        with pytest.raises(catalog.UsageError, match="id_rsa is no list of operators"):
            _set(tmp_path, LIST, str(secret))
    assert not list((tmp_path / "shared").iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="Run as root: it makes another user's file.")
def test_a_copy_of_another_users_or_a_link_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autocast_ops, "is_read_from", lambda path: path.parent.name == "shared")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "shared"))
    (tmp_path / "shared").mkdir()
    (tmp_path / "ops.txt").write_text("linear\n")
    _set(tmp_path, LIST, "ops.txt")
    copy = Path(os.environ[LIST])
    for spoil in ("owner", "mode", "link"):
        inode = copy.stat().st_ino
        if spoil == "owner":
            os.chown(copy, 12345, 12345)
        elif spoil == "mode":
            copy.chmod(0o666)
        else:
            copy.rename(tmp_path / "theirs")
            copy.symlink_to(tmp_path / "theirs")
        monkeypatch.delenv(LIST)
        _set(tmp_path, LIST, "ops.txt")
        assert Path(os.environ[LIST]) == copy
        assert not copy.is_symlink()
        assert copy.stat().st_ino != inode
        assert (copy.stat().st_uid, copy.stat().st_mode & 0o777) == (0, 0o600)
