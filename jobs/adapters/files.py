"""The files of an adapter: found in a directory or object store, checked before any engine sees them.

Source: PEFT 0.17's adapter_config.json and names of tensors; the header of a safetensors file; GGUF adapters
as llama.cpp's convert_lora_to_gguf writes them.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from jobs.errors import AdapterUnreadableError
from jobs.prompts.gguf import Gguf, GgufError

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
# Of all its files: rank 64 in every matrix of an 8B model takes 0.34 GB.
MAX_BYTES: Final = 2**30
MAX_RANK: Final = 512
_MAX_CONFIG_BYTES: Final = 2**20
_MAX_HEADER_BYTES: Final = 2**24
_MAX_PAIRS: Final = 20_000
_DATATYPES: Final = frozenset({"F16", "BF16", "F32"})
_PEFT: Final = re.compile(
    r"base_model\.model\.(?P<place>.+)\.(?P<module>\w+)\.lora_(?P<side>[AB])(?:\.default)?\.weight"
)
_GGUF: Final = re.compile(r"(?P<place>blk\.\d+)\.(?P<module>\w+)\.weight\.lora_(?P<side>[ab])")
# What adapters of PEFT may have besides two matrices a module, by the values that mean: nothing.
_PLAIN: Final[Mapping[str, tuple[object, ...]]] = {
    "bias": ("none", None),
    "use_dora": (False, None),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "fan_in_fan_out": (False, None),
}


@dataclass(frozen=True, slots=True)
class CheckedAdapter:
    """An adapter whose files keep all rules.

    Attributes:
        format: `peft` or `gguf`.
        rank: of its matrices.
        num_bytes: of its files.
        sha256: of its files.
        modules: the parts of a layer that it changes.
        shapes: inputs and outputs of each of these.
    """

    format: str
    rank: int
    num_bytes: int
    sha256: bytes
    modules: tuple[str, ...]
    shapes: Mapping[str, tuple[int, int]]


@contextmanager
def fetched(source: str) -> Iterator[Path]:
    """Make an adapter's files local for a while, if they are in an object store.

    Args:
        source: a directory, a GGUF file, or the URL of either in an object store, such as `s3://bucket/name`.

    Raises:
        AdapterUnreadableError: they cannot be read, or are too large.
    """
    if "://" not in source:
        yield Path(source)
        return
    with TemporaryDirectory(prefix="adapter-") as directory:
        yield _download(source, Path(directory))


def check(path: Path) -> CheckedAdapter:
    """Check the files of an adapter: format, rank, shapes and size.

    Raises:
        AdapterUnreadableError: they break a rule; the message names it.
    """
    files = files_of(path)
    num_bytes = sum(_size(each) for each in files)
    if num_bytes > MAX_BYTES:
        raise AdapterUnreadableError(f"{path} has {num_bytes:,} bytes; an adapter may have {MAX_BYTES:,}.")
    is_gguf = len(files) == 1
    rank, pairs = _read_gguf(path) if is_gguf else _read_peft(path)
    modules = tuple(sorted({module for _, module in pairs}))
    shapes = {module: _shape_of(module, pairs, rank) for module in modules}
    return CheckedAdapter("gguf" if is_gguf else "peft", rank, num_bytes, digest(files), modules, shapes)


def check_base(found: CheckedAdapter, base: Path) -> None:
    """Check that the adapter fits the shapes of its base model.

    Args:
        found: the adapter.
        base: the model's directory with its `config.json`, or its GGUF file.

    Raises:
        AdapterUnreadableError: it does not fit; the message names the module and both shapes.
    """
    known = _gguf_base(base) if base.is_file() else _config_base(base)
    for module, shape in found.shapes.items():
        if module in known and known[module] != shape:
            raise AdapterUnreadableError(
                f"The adapter's {module} has the shape {shape[0]} to {shape[1]}, the base model's"
                f" {known[module][0]} to {known[module][1]}: it was made for another model."
            )


def files_of(path: Path) -> list[Path]:
    """Return the files of an adapter, which are named or lie in a directory."""
    if path.is_dir():
        return [path / CONFIG, path / WEIGHTS]
    if path.suffix == ".gguf":
        return [path]
    message = f"{path} is neither a directory with {CONFIG} and {WEIGHTS} nor a .gguf file."
    raise AdapterUnreadableError(message)


def digest(files: list[Path]) -> bytes:
    """Hash the files of an adapter, in their order."""
    found = sha256()
    for each in files:
        try:
            with each.open("rb") as file:
                while piece := file.read(2**20):
                    found.update(piece)
        except OSError as error:
            raise AdapterUnreadableError(f"Cannot read {each}: {error.strerror}.") from error
    return found.digest()


def read_config(path: Path) -> dict[str, Any]:
    """Read a small JSON object.

    Raises:
        AdapterUnreadableError: it is missing, too large, or no JSON object.
    """
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise AdapterUnreadableError(f"{path} has more than {_MAX_CONFIG_BYTES:,} bytes.")
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise AdapterUnreadableError(f"Cannot read {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise AdapterUnreadableError(f"{path} is no JSON.") from error
    if not isinstance(found, dict):
        raise AdapterUnreadableError(f"{path} is no JSON object.")
    return found


def read_header(path: Path) -> tuple[int, dict[str, Any]]:
    """Read where the tensors of a safetensors file begin, and the entry of each.

    Raises:
        AdapterUnreadableError: it is missing, or no such file.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(_MAX_HEADER_BYTES, path.stat().st_size):
                raise AdapterUnreadableError(f"{path} is no safetensors file: its header is too long.")
            found = json.loads(file.read(length))
    except OSError as error:
        raise AdapterUnreadableError(f"Cannot read {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise AdapterUnreadableError(f"{path} is no safetensors file: its header is no JSON.") from error
    if not isinstance(found, dict):
        raise AdapterUnreadableError(f"{path} is no safetensors file: its header is no object.")
    found.pop("__metadata__", None)
    return 8 + length, found


# The two matrices of one module of one layer: (rank, inputs) and (outputs, rank).
_Pairs = dict[tuple[str, str], dict[str, tuple[int, int]]]


def named_pair(name: str) -> tuple[str, str, str]:
    """Return the layer's place, the module, and `a` or `b`, of a tensor's name in a file of PEFT.

    Raises:
        AdapterUnreadableError: it is no matrix of a low-rank adapter.
    """
    found = _PEFT.fullmatch(name)
    if found is None:
        raise AdapterUnreadableError(f"The tensor {name[:200]!r} is no matrix of a low-rank adapter.")
    return found["place"], found["module"], found["side"].lower()


def _read_peft(path: Path) -> tuple[int, _Pairs]:
    config = read_config(path / CONFIG)
    if config.get("peft_type") != "LORA":
        raise AdapterUnreadableError(f"{CONFIG}: peft_type must be 'LORA', not {config.get('peft_type')!r}.")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or not 1 <= rank <= MAX_RANK:
        raise AdapterUnreadableError(f"{CONFIG}: r must be between 1 and {MAX_RANK}.")
    if not isinstance(alpha, int | float) or not 0 < alpha < inf:
        raise AdapterUnreadableError(f"{CONFIG}: lora_alpha must be a number above 0.")
    for name, plain in _PLAIN.items():
        if config.get(name) not in plain:
            raise AdapterUnreadableError(f"{CONFIG}: {name} is not supported.")
    begin, header = read_header(path / WEIGHTS)
    num_bytes, pairs = _size(path / WEIGHTS), _Pairs()
    for name, entry in header.items():
        place, module, side = named_pair(name)
        pairs.setdefault((place, module), {})[side] = _tensor_shape(name, entry, num_bytes - begin)
    return rank, pairs


def _tensor_shape(name: str, entry: object, num_bytes: int) -> tuple[int, int]:
    match entry:
        case {
            "dtype": str(datatype),
            "shape": [int(rows), int(columns)],
            "data_offsets": [int(at), int(end)],
        }:
            size = rows * columns * (4 if datatype == "F32" else 2)
            if datatype in _DATATYPES and 0 <= at <= end <= num_bytes and end - at == size:
                return rows, columns
    raise AdapterUnreadableError(
        f"The tensor {name[:200]!r} must be a matrix of {', '.join(sorted(_DATATYPES))} within its file."
    )


def _read_gguf(path: Path) -> tuple[int, _Pairs]:
    try:
        header, shapes = Gguf.read(path), Gguf.read_shapes(path)
    except GgufError as error:
        raise AdapterUnreadableError(error.message) from error
    if header.text("general.type") != "adapter" or header.text("adapter.type") != "lora":
        raise AdapterUnreadableError(f"{path} is no LoRA adapter: its general.type is not 'adapter'.")
    pairs = _Pairs()
    for name, shape in shapes.items():
        found = _GGUF.fullmatch(name)
        if found is None or len(shape) != 2:  # a matrix
            raise AdapterUnreadableError(f"The tensor {name[:200]!r} is no matrix of a low-rank adapter.")
        # The shortest stride comes first: columns, then rows.
        pairs.setdefault((found["place"], found["module"]), {})[found["side"]] = (shape[1], shape[0])
    ranks = {pair["a"][0] for pair in pairs.values() if "a" in pair}
    if len(ranks) != 1 or not 1 <= (rank := ranks.pop()) <= MAX_RANK:
        raise AdapterUnreadableError(f"All matrices must have one rank, between 1 and {MAX_RANK}.")
    return rank, pairs


def _shape_of(module: str, pairs: _Pairs, rank: int) -> tuple[int, int]:
    """Return inputs and outputs of a module, which are the same in all layers.

    Raises:
        AdapterUnreadableError: they are not, or a matrix is missing or of another rank.
    """
    if len(pairs) > _MAX_PAIRS:
        raise AdapterUnreadableError(
            f"It changes {len(pairs):,} modules of layers; at most {_MAX_PAIRS:,} may be."
        )
    found: set[tuple[int, int]] = set()
    for (place, name), pair in pairs.items():
        if name != module:
            continue
        if pair.keys() != {"a", "b"} or pair["a"][0] != rank or pair["b"][1] != rank:
            raise AdapterUnreadableError(f"{place}.{module} must have two matrices of rank {rank}.")
        found.add((pair["a"][1], pair["b"][0]))
    if len(found) != 1:
        raise AdapterUnreadableError(f"{module} must have the same shape in all layers.")
    return found.pop()


def _config_base(base: Path) -> dict[str, tuple[int, int]]:
    config = read_config(base / "config.json")
    hidden, inner = config.get("hidden_size"), config.get("intermediate_size")
    heads = config.get("num_attention_heads")
    if not (isinstance(hidden, int) and isinstance(inner, int) and isinstance(heads, int) and heads):
        raise AdapterUnreadableError(f"{base}/config.json does not tell the shapes of a model.")
    width = config.get("head_dim") or hidden // heads
    own, kept = heads * width, (config.get("num_key_value_heads") or heads) * width
    return {
        "q_proj": (hidden, own),
        "k_proj": (hidden, kept),
        "v_proj": (hidden, kept),
        "o_proj": (own, hidden),
        "gate_proj": (hidden, inner),
        "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }


def _gguf_base(base: Path) -> dict[str, tuple[int, int]]:
    try:
        shapes = Gguf.read_shapes(base)
    except GgufError as error:
        raise AdapterUnreadableError(error.message) from error
    named = ((re.fullmatch(r"blk\.\d+\.(\w+)\.weight", name), shape) for name, shape in shapes.items())
    return {found[1]: (shape[0], shape[1]) for found, shape in named if found and len(shape) > 1}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise AdapterUnreadableError(f"Cannot read {path}: {error.strerror}.") from error


def _download(source: str, directory: Path) -> Path:
    """Copy the files of an adapter from an object store."""
    folder, _, last = source.rstrip("/").rpartition("/")
    names = [last] if last.endswith(".gguf") else [CONFIG, WEIGHTS]
    try:
        import obstore
        from obstore.store import from_url

        client = from_url(folder if last.endswith(".gguf") else source, **_options(source))
        left = MAX_BYTES
        for name in names:
            left = _left_after(obstore.head(client, name)["size"], left, source)
            with (directory / name).open("wb") as file:
                for piece in obstore.get(client, name).stream():
                    file.write(memoryview(piece))
    except ImportError as error:
        raise AdapterUnreadableError("Object stores need the extra: pip install 'longbatch[s3]'.") from error
    except AdapterUnreadableError:
        raise
    except Exception as error:
        raise AdapterUnreadableError(f"{source} cannot be read: {type(error).__name__}.") from error
    return directory / names[0] if len(names) == 1 else directory


def _left_after(num_bytes: int, left: int, source: str) -> int:
    if num_bytes > left:
        raise AdapterUnreadableError(f"{source} has more than {MAX_BYTES:,} bytes.")
    return left - num_bytes


def _options(source: str) -> dict[str, Any]:
    """Build a client's options; plain http is for private endpoints, which AWS_ENDPOINT_URL must name."""
    return {} if source.startswith("file:") else {"client_options": {"timeout": "60s", "allow_http": True}}
