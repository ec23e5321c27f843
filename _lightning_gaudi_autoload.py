"""The entry point that torch calls at the end of `import torch`.

A module of its own, beside the package and with the standard library only: torch cannot be
imported any more where an entry point's module fails to import.
"""

import os


def autoload() -> None:
    """Activate the plugin; `LIGHTNING_GAUDI_AUTOLOAD=0` turns this off.

    A failure of ours never keeps torch from being imported: it becomes one warning. Only where the
    environment asks for the simulator is it raised, for then the run must not go on without it.
    """
    if os.environ.get("LIGHTNING_GAUDI_AUTOLOAD") == "0":
        return
    try:
        from lightning_gaudi import activation

        activation.activate()
    except Exception as error:
        if os.environ.get("LIGHTNING_GAUDI_SIMULATE"):
            raise
        import warnings

        warnings.warn(
            "lightning_gaudi could not be activated, so accelerator='hpu' will not work: "
            f"{type(error).__name__}: {error}. Reinstall lightning-gaudi, or set "
            "LIGHTNING_GAUDI_AUTOLOAD=0 to leave it off.",
            RuntimeWarning,
            stacklevel=2,
        )
