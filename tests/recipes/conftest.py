import pytest


@pytest.fixture(autouse=True)
def _command_line(monkeypatch):
    """LightningCLI compares its arguments with the command line, here pytest's."""
    monkeypatch.setattr("sys.argv", ["python"])
    # Lightning 2.6.6 calls functions that jsonargparse 4.53 has renamed.
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
