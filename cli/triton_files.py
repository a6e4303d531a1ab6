"""Path of the folder `triton`: models of our engines, profiles and templates of others, and scripts."""

from pathlib import Path
from typing import Final

# A wheel installs it inside this package: at the top level it would hide the `triton` that torch imports.
_INSTALLED: Final = Path(__file__).resolve().parent / "triton"
TRITON_FILES: Final = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).resolve().parents[1] / "triton"
