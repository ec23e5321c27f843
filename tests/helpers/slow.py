"""What many tests share and takes too long for `make test`."""

from typing import Any

import pytest

SLOW: dict[str, Any] = {"params": [pytest.param(None, marks=pytest.mark.slow, id="slow")]}
"""`@pytest.fixture(scope="module", **SLOW)`: whatever asks for the fixture is a slow test."""
