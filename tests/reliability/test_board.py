"""Where ranks write for each other; what they do with it is in tests/faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.distributed import FileStore, HashStore, PrefixStore, TCPStore

from lightning_gaudi.reliability.board import own_connection


class Old:
    """A store of torch before 2.8, which cannot be cloned."""

    def __init__(self, store: Any) -> None:
        self.underlying_store = store


@pytest.mark.parametrize("has_clone", [True, False])
@pytest.mark.parametrize("kind", ["tcp", "file", "hash"])
def test_another_connection_has_the_same_content(
    kind: str, has_clone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers: dict[str, Any] = {
        "tcp": lambda: TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False),
        "file": lambda: FileStore(str(tmp_path / "store")),
        "hash": HashStore,
    }
    store = makers[kind]()
    given: Any = PrefixStore("group", store)
    if not has_clone:
        monkeypatch.setattr("lightning_gaudi.reliability.board.PrefixStore", Old)
        given = Old(store)
    other = own_connection(given)
    own = given if has_clone else store
    own.set("x", "1")
    assert other.get("x") == b"1"
    assert (other is own) == (kind == "hash" and not has_clone)
