"""Which packages there are; all else stands in pyproject.toml.

The recipes lie at the top of a checkout, where `python -m recipes.mrpc` finds them, and below the
package in a wheel: `recipes` is no name to claim in a user's environment. `lightning-gaudi run`
puts that folder on `sys.path`, so modules, pickles and YAML files name the same in both.
"""

import runpy
from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py

_SHIPPED = "lightning_gaudi._shipped"
_RECIPES = find_namespace_packages(include=["recipes", "recipes.*"])

_KNOWN = runpy.run_path(str(Path(__file__).parent / "lightning_gaudi" / "_version.py"))
_URLS = {"Documentation": _KNOWN["SITE"], "Source": _KNOWN["REPOSITORY"]}

_AUTOLOAD = "_lightning_gaudi_autoload"


class _BuildPy(build_py):
    """Puts the `.pth` file beside the modules, where Python reads it as it starts."""

    def run(self) -> None:
        super().run()
        # An editable install takes nothing from build_lib.
        installed = self.get_finalized_command("install").install_lib
        self.copy_file(f"{_AUTOLOAD}.pth", installed if self.editable_mode else self.build_lib)


setup(
    cmdclass={"build_py": _BuildPy},
    packages=[
        *find_namespace_packages(include=["lightning_gaudi", "lightning_gaudi.*"]),
        *(f"{_SHIPPED}.{name}" for name in _RECIPES),
    ],
    package_dir={f"{_SHIPPED}.recipes": "recipes"},
    package_data={
        "lightning_gaudi": [
            "py.typed",
            "simulator/README.md",
            "simulator/csrc/**/*",
            "simulator/vendor_names/*.json",
            "simulator/measured_cards/*.json",
            "report/*.html",
            "tools/audit/*.html",
            "tools/plan/fitted.json",
        ],
        **{
            f"{_SHIPPED}.{name}": ["*.yaml", "*.html", "*.txt", "*.png", "README.md"]
            for name in _RECIPES
        },
    },
    py_modules=[_AUTOLOAD],
    project_urls={name: address for name, address in _URLS.items() if address},
)
