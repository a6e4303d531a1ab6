"""Engines that share one machine: what each of its GPUs has to hold."""

from collections.abc import Sequence

from cli.engine.errors import ProfileError
from cli.engine.plan import plan
from cli.engine.profile import Profile


def gib_by_gpu(profiles: Sequence[Profile]) -> dict[int, float]:
    """Sum up what the engines take of each GPU, by its index.

    Raises:
        ProfileError: a GPU would hold more than it has, two kinds are named for one GPU, two engines have the
            same name, or an engine does not say which GPUs it uses.
    """
    taken: dict[int, float] = {}
    kinds: dict[int, Profile] = {}
    names: dict[str, str] = {}
    for each in profiles:
        if other := names.get(each.model.triton_name):
            raise ProfileError(
                f"{other} and {each.name} are both called {each.model.triton_name}: set another"
            )
        names[each.model.triton_name] = each.name
        if len(profiles) > 1 and not each.gpu.devices:
            raise ProfileError(
                f"{each.name} does not say which GPUs it uses: without gpu.devices every engine begins with"
                " GPU 0"
            )
        for gpu in each.gpu.devices or range(each.gpu.per_node):
            known = kinds.setdefault(gpu, each)
            if known.gpu.kind != each.gpu.kind:
                raise ProfileError(
                    f"GPU {gpu} is {known.gpu.kind} in {known.name} and {each.gpu.kind} in {each.name}"
                )
            taken[gpu] = taken.get(gpu, 0) + plan(each).gpu_gib
    for gpu, gib in taken.items():
        memory = kinds[gpu].hardware.memory_bytes / 2**30
        if gib > memory:
            on_it = [each.name for each in profiles if gpu in (each.gpu.devices or range(each.gpu.per_node))]
            raise ProfileError(
                f"GPU {gpu} would hold {gib:.1f} GiB of its {memory:.1f}: {', '.join(on_it)}; give one of"
                " them other gpu.devices or a smaller pool"
            )
    return taken
