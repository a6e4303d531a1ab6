"""Where the folder `triton` lies: models of our engines, profiles and templates of others, and scripts."""

from pathlib import Path
from typing import Final

# An installed wheel has it beside this module: by its own name it would hide the package that torch imports.
_INSTALLED: Final = Path(__file__).resolve().parent / "triton"
TRITON_FILES: Final = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).resolve().parents[1] / "triton"
