"""The commands for engines: plan a profile, render its files, and check files against it."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.table import Table

from cli.commands import halts, inspect
from cli.engine import drift, drivers, proposal, render, sharing
from cli.engine import plan as plans
from cli.engine import profile as profiles
from cli.engine.cache_layout import LayerGroup
from cli.engine.errors import ProfileError, RenderError
from cli.engine.hardware import GPUS
from cli.engine.plan import CapacityPlan
from cli.engine.profile import Profile
from cli.engine.profile_groups import Precision
from jobs.errors import LongbatchError
from longbatch.cli.output import EXIT_USAGE, AsJson, notes, output, print_error, print_json

EXIT_DRIFT: Final = 1
_DRIVER_SECONDS: Final = 10.0  # it may load at the first call

app = typer.Typer(no_args_is_help=True, help="Plan, build, inspect and pause engines.")

OptionalName = Annotated[
    str | None,
    typer.Argument(
        metavar="[PROFILE]",
        help="A name in triton/profiles, or a .toml file; left out: one is proposed for --config and --gpu.",
    ),
]
ProfileName = Annotated[
    str, typer.Argument(metavar="PROFILE", help="A name in triton/profiles, or a .toml file.")
]
Weights = Annotated[
    Precision | None, typer.Option("--precision", help="Precision of the weights, overriding the profile.")
]
ModelConfig = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The model's config.json, overriding the profile's."),
]
Folder = Annotated[Path, typer.Argument(metavar="OUT", help="The rendered folder.", file_okay=False)]


def register(parent: typer.Typer) -> None:
    """Add the commands to the application."""
    for name, command in _COMMANDS.items():
        app.command(name)(command)
    inspect.register(app)
    halts.register_engines(app)
    parent.add_typer(app, name="engine")


def plan(  # noqa: PLR0913  # options of a command
    name: OptionalName = None,
    *,
    precision: Weights = None,
    config: ModelConfig = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="KIND", help=f"Propose a profile: {', '.join(GPUS)}.")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option("--gpus", min=1, max=64, help="How many.", show_default="the fewest that suffice"),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE", help="Write the proposed profile to a .toml file."),
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-num-batched-tokens",
            min=1,
            help="vLLM's option of this name, for its blocks per sequence.",
            show_default="vLLM's default on the GPU",
        ),
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option("--beside", metavar="PROFILE", help="Another engine on the same machine; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Report what fits into an engine, the binding limit, the best possible speed, and known pitfalls."""
    if name is not None and gpu is None:
        profile, proposed = _load(name, precision, config), None
    else:
        profile = _propose(name, config, gpu, gpus)
        proposed = proposal.written(profile)
    if beside:
        _refuse_overbooked([profile, *(_load(each, None, None) for each in beside)])
    found = plans.plan(profile, max_num_batched_tokens=max_num_batched_tokens)
    if as_json:
        print_json(asdict(found))
    else:
        _show(found)
    driver = _installed_driver()
    if driver is not None and (said := drivers.mismatch(profile, driver)):
        notes.print(f"[yellow]warning:[/] {escape(said)}")
    if proposed is not None and save is not None:
        with _usage_errors():
            save.write_text(proposed)
    elif proposed is not None and not as_json:
        output.print(f"\nproposed profile; --save FILE.toml writes it:\n\n{escape(proposed)}")


def render_files(
    name: ProfileName,
    out: Folder,
    *,
    precision: Weights = None,
    config: ModelConfig = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; report differences.")] = False,
) -> None:
    """Write the files of a deployment: model configurations, commands, settings."""
    profile = _load(name, precision, config)
    if check:
        _check(profile, out)
        return
    with _usage_errors():
        files = render.render(profile)
        render.write(files, out)
    output.print(f"{len(files)} files in {escape(str(out))}")
    for warning in plans.plan(profile).warnings:
        notes.print(f"[yellow]warning:[/] {escape(warning)}")


def check_files(
    name: ProfileName,
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="A rendered folder, a model repository, a fetched model, or a built engine.",
            file_okay=False,
        ),
    ],
    *,
    precision: Weights = None,
    config: ModelConfig = None,
) -> None:
    """Report where a rendered folder, a repository, a model or an engine differs from its profile."""
    _check(_load(name, precision, config), folder)


_COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "plan": plan,
    "render": render_files,
    "check": check_files,
}


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Print what is wrong with a profile or a folder, and end with the exit code of a wrong call."""
    try:
        yield
    except (ProfileError, RenderError, OSError) as error:
        print_error(error.message if isinstance(error, LongbatchError) else str(error))
        raise typer.Exit(EXIT_USAGE) from error


def _load(name: str, precision: Precision | None, config: Path | None) -> Profile:
    with _usage_errors():
        return profiles.load(name, precision=precision, config=config)


def _propose(name: str | None, config: Path | None, gpu: str | None, gpus: int | None) -> Profile:
    if name is not None:
        print_error("--gpu proposes a profile: leave PROFILE out")
        raise typer.Exit(EXIT_USAGE)
    if config is None or gpu is None:
        print_error("name a PROFILE, or a model and a GPU: --config config.json --gpu h100")
        raise typer.Exit(EXIT_USAGE)
    with _usage_errors():
        return proposal.propose(config, gpu, count=gpus)


def _refuse_overbooked(sharing_machine: list[Profile]) -> None:
    with _usage_errors():
        taken = sharing.gib_by_gpu(sharing_machine)
    for gpu, gib in sorted(taken.items()):
        notes.print(f"GPU {gpu}: {gib:.1f} GiB for all engines on it")


def _check(profile: Profile, folder: Path) -> None:
    with _usage_errors():
        found = drift.find(profile, folder)
    for each in found:
        output.print(f"[red]✗[/] {escape(each.sentence())}")
    if found:
        raise typer.Exit(EXIT_DRIFT)
    output.print(f"[green]✓[/] {escape(str(folder))} matches {escape(profile.name)}")


def _installed_driver() -> str | None:
    """Return this machine's driver; None if it has none that answers."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        answer = subprocess.run(
            [tool, "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
            timeout=_DRIVER_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.partition("\n")[0].strip() or None


def _show(found: CapacityPlan) -> None:
    table = Table(
        "memory", "GiB", "", box=None, title=f"{found.profile}, {found.weights} weights", title_justify="left"
    )
    per_token = f"{_kib(found.kv_bytes_per_token)} KiB per token"
    if found.kv_bytes_per_sequence:
        per_token += f" and {found.kv_bytes_per_sequence / 2**20:.1f} MiB per sequence"
    gpus = f"{found.gpu_gib:.1f} of {found.gpu_memory_gib:.1f} on each of {found.gpu_count} GPU"
    table.add_row("weights", f"{found.weights_gib:.1f}", "")
    table.add_row("KV pool", f"{found.pool_gib:.1f}", f"{found.pool_tokens} tokens, {per_token}")
    table.add_row("runtime", f"{found.runtime_gib:.1f}", "context, workspaces, activations")
    table.add_row("total", f"{found.total_gib:.1f}", gpus)
    output.print(table)
    if len(found.kv_layers) > 1 or found.kv_layers[0].kind != "full":
        output.print(f"layers: {', '.join(_layers(each) for each in found.kv_layers)}")
    vllm, pace = found.vllm, found.pace
    if vllm.blocks_per_sequence:
        output.print(
            f"vLLM would take {vllm.blocks_per_sequence} blocks of {vllm.tokens_per_block} tokens for each"
            f" sequence besides its text, with --max-num-batched-tokens {vllm.max_num_batched_tokens};"
            f" {vllm.blocks_with_one_batch} before vLLM 0.26 or without asynchronous scheduling"
        )
        output.print(
            f"it keeps {vllm.kept_blocks} of them once its prompt is read:"
            f" LONGBATCH_ENGINE__BLOCKS_PER_SEQUENCE={vllm.kept_blocks}"
        )
    output.print(f"the longest prompt takes {found.full_prompt_gib:.1f} GiB of the pool")
    output.print(
        f"full-length jobs at once: {found.full_length_jobs}; limited by {found.binds['full_length']}"
    )
    output.print(f"typical jobs at once: {found.typical_jobs}; limited by {found.binds['typical']}")
    output.print(f"the memory could hold a pool of {found.largest_pool_tokens} tokens")
    output.print(
        f"at best: prefill of the longest prompt takes {pace.full_prefill_seconds:g} s, of a typical one"
        f" {pace.typical_prefill_seconds:g} s; {pace.full_decode_tokens_per_second:g} tokens/s at full"
        f" length, {pace.typical_decode_tokens_per_second:g} in a full batch of typical jobs"
    )
    if found.driver is not None:
        output.print(f"the image needs NVIDIA driver {found.driver} or newer")
    for warning in found.warnings:
        output.print(f"[yellow]warning:[/] {escape(warning)}")


def _layers(group: LayerGroup) -> str:
    window = f" of {group.window} tokens" if group.window is not None else ""
    return f"{group.layers} {group.kind}{window}"


def _kib(size: int) -> str:
    return f"{size / 1024:.1f}".removesuffix(".0")
