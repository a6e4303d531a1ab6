"""Import stubs for the packages that SGLang imports for GPUs: nothing of them is ever called."""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any, Final

_PACKAGES: Final = frozenset(
    {
        *("cutlass", "deep_gemm", "flashinfer", "quack", "sgl_kernel"),
        *("torchaudio", "torchcodec", "torchvision"),
    }
)


class _Anything(type):
    """A class that has every attribute: a class again."""

    def __getattr__(cls, name: str) -> "_Anything":
        if name.startswith("__"):
            raise AttributeError(name)
        found = _Anything(name, (), {})
        setattr(cls, name, found)
        return found


class _Stub(types.ModuleType):
    """A module that has every attribute."""

    __path__: list[str] = []  # noqa: RUF012  # the name and form are Python's

    def __getattr__(self, name: str) -> _Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        found = _Anything(name, (), {})
        setattr(self, name, found)
        return found


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stubs and every module below them."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in _PACKAGES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Stub(spec.name)

    def exec_module(self, _module: types.ModuleType) -> None:
        """Do nothing: a stub is complete."""


def install() -> None:
    """Install the stubs, after transformers has found out that it lacks these packages."""
    from transformers.utils import import_utils  # only in SGLang's environment

    checks: Any = import_utils
    for name in ("torchvision", "torchvision_v2", "torchaudio", "torchcodec"):
        getattr(checks, f"is_{name}_available")()
    sys.meta_path.insert(0, _Finder())
