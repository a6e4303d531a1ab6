"""The requests that a peer sends, as files for its process."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Item:
    """One request to send.

    Attributes:
        ids: file with the prompt's token ids.
        limit: output tokens that it may generate.
        at_s: when to send it, in seconds after the start.
    """

    ids: Path
    limit: int
    at_s: float = 0.0

    def load(self) -> npt.NDArray[np.int32]:
        """Load the prompt's token ids."""
        found: npt.NDArray[np.int32] = np.load(self.ids)
        return found


def write(directory: Path, prompts: Sequence[tuple[npt.NDArray[np.int32], int, float]]) -> Path:
    """Write the prompts and their manifest, and return the manifest's file."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, (ids, limit, at_s) in enumerate(prompts):
        file = directory / f"{number}.npy"
        np.save(file, ids)
        lines.append([file.name, limit, at_s])
    manifest = directory / "manifest.json"
    manifest.write_text(json.dumps(lines))
    return manifest


def read(manifest: Path) -> list[Item]:
    """Read the requests in order."""
    return [
        Item(manifest.parent / name, limit, at_s) for name, limit, at_s in json.loads(manifest.read_text())
    ]
