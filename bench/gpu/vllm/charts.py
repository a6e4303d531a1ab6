"""Two SVG charts from a results file: throughput of the contenders, and slots in use over time."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Final
from xml.sax.saxutils import escape

from bench.gpu.vllm.record import Run

_WIDTH: Final = 880
_LEFT: Final = 60
_BAR: Final = 18
_NAME_END: Final = 190
_INK: Final = "#24292f"
_GRID: Final = "#d0d7de"
_COLOURS: Final = {
    "offline": "#8c959f",
    "client": "#bf8700",
    "pool": "#cf222e",
    "by-document": "#1a7f37",
    "longbatch": "#0969da",
}
_NAMES: Final = {
    "offline": "vLLM offline",
    "client": "client, all at once",
    "pool": "pool of 4",
    "by-document": "sorted by hand",
    "longbatch": "Longbatch",
}


def throughput(runs: Sequence[Run]) -> str:
    """Draw each list's contenders as bars, as a share of the best one's jobs per second."""
    lists: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.is_whole and run.contender in _COLOURS:
            lists[_title(run)][_name(run)].append(run)
    rows: list[str] = []
    y = 44
    for title, contenders in lists.items():
        speeds = {name: median(each.jobs_per_s for each in found) for name, found in contenders.items()}
        best = max(speeds.values())
        rows.append(_text(12, y, title, weight="bold"))
        y += 8
        for name, speed in sorted(speeds.items(), key=lambda item: -item[1]):
            width = 420 * speed / best
            preempted = max(int(each.counters.preempted) for each in contenders[name])
            colour = _COLOURS[contenders[name][0].contender]
            words = f"{speed:.2f} jobs/s, {speed / best:.2f}"
            words += f", {preempted} preempted" if preempted else ""
            rows.append(_text(_NAME_END, y + 13, name, anchor="end"))
            rows.append(
                f'<rect x="{_NAME_END + 8}" y="{y}" width="{width:.1f}" height="{_BAR - 4}" fill="{colour}"/>'
            )
            rows.append(_text(_NAME_END + 14 + width, y + 12, words))
            y += _BAR
        y += 26
    heading = _text(12, 20, "Jobs per second on one GPU, beside the best contender of each list", size=15)
    return _svg(y, [heading, *rows])


def running(runs: Sequence[Run]) -> str:
    """Draw requests in vLLM's batch over time, one panel for each list."""
    panels: dict[str, dict[str, Run]] = defaultdict(dict)
    for run in runs:
        if run.curve and run.is_whole and run.contender in _COLOURS and not run.setting.note:
            panels[_title(run)][_name(run)] = run  # the last run of a contender stands for it
    rows: list[str] = []
    y, height = 40, 120
    for title, found in panels.items():
        end_s = max(each.seconds for each in found.values())
        most = max(point[1] for each in found.values() for point in each.curve) or 1
        rows.append(_text(12, y, title, weight="bold"))
        top = y + 10
        box = f'x="{_LEFT}" y="{top}" width="{_WIDTH - _LEFT - 20}" height="{height}"'
        rows.append(f'<rect {box} fill="none" stroke="{_GRID}"/>')
        rows.append(_text(_LEFT - 6, top + 10, f"{most:.0f}", anchor="end"))
        rows.append(_text(_LEFT - 6, top + height, "0", anchor="end"))
        for run in found.values():
            points = " ".join(
                f"{_LEFT + (_WIDTH - _LEFT - 20) * at / end_s:.1f},{top + height * (1 - value / most):.1f}"
                for at, value, *_ in run.curve
            )
            stroke = f'fill="none" stroke="{_COLOURS[run.contender]}" stroke-width="1.5"'
            rows.append(f'<polyline points="{points}" {stroke}/>')
        place = _LEFT
        for name, run in found.items():
            words = f"{name}: {run.seconds:.0f} s"
            box = f'x="{place}" y="{top + height + 8}" width="10" height="10"'
            rows.append(f'<rect {box} fill="{_COLOURS[run.contender]}"/>')
            rows.append(_text(place + 14, top + height + 17, words))
            place += 30 + 7 * len(words)
        rows.append(_text(_WIDTH - 20, top + height + 17, f"{end_s:.0f} s", anchor="end"))
        y = top + height + 46
    heading = _text(12, 18, "Requests running in vLLM over time", size=15)
    return _svg(y, [heading, *rows])


def _name(run: Run) -> str:
    return _NAMES[run.contender] + (f" ({run.setting.note})" if run.setting.note else "")


def _title(run: Run) -> str:
    kind, seed, size = run.listing.split(":")
    return f"{kind} {size} (seed {seed}), shape {run.setting.shape.upper()}, {run.setting.slots} slots"


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", size: int = 12
) -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-weight="{weight}" font-size="{size}"'
        f' fill="{_INK}">{escape(text)}</text>'
    )


def _svg(height: float, rows: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}"'
        ' font-family="system-ui, sans-serif">'
    )
    background = f'<rect width="{_WIDTH}" height="{height:.0f}" fill="white"/>'
    return "\n".join([head, background, *rows, "</svg>", ""])
