"""A scripted engine: it holds, ends, refuses and dies as a test says, and records all that it was sent.

What it is asked and how it answers is a dialect's business: `http_engine` and `triton_engine` serve one.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from rig import oracle
from rig.waiting import eventually

_LOOK_SECONDS: Final = 0.02


class RefusedError(Exception):
    """The engine refuses the request with this status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class DiedError(Exception):
    """The engine has died with the request in it."""


@dataclass(frozen=True)
class Script:
    """How the engine treats requests with one mark.

    Attributes:
        length: tokens of the whole answer.
        hold_at: tokens after which it says no more until the mark is released.
        pace_seconds: between two tokens.
        kills: the engine dies of the prompt.
        is_deaf: a cut connection does not end the request; only its release does.
        refuses_with: status of the refusal; None: it is served.
        versions: of the answer, request by request; the last one repeats.
    """

    length: int = 8
    hold_at: int | None = None
    pace_seconds: float = 0.0
    kills: bool = False
    is_deaf: bool = False
    refuses_with: int | None = None
    versions: Sequence[int] = (0,)


@dataclass
class Request:
    """One request in the engine.

    Attributes:
        num_given: tokens of the answer that its prompt already ends with.
        num_sent: tokens that it was answered with.
        others: marks of the requests that were inside when it came.
    """

    mark: int
    name: str
    prompt_tokens: int
    max_tokens: int
    num_given: int
    answer: Sequence[int]
    generation: int
    others: tuple[int, ...]
    num_sent: int = 0
    is_aborted: bool = False
    is_released: bool = False
    has_ended: bool = False


@dataclass
class ScriptedEngine:
    """Slots and a pool of blocks, what they hold now, and the most that they ever held.

    Attributes:
        watch: called with each request that arrives.
        is_down: it takes no connection.
    """

    slots: int
    blocks: int
    tokens_per_block: int
    default: Script = field(default_factory=Script)
    scripts: dict[int, Script] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    most_requests: int = 0
    most_blocks: int = 0
    num_deaths: int = 0
    num_probes: int = 0
    is_down: bool = False
    watch: Callable[[], None] = lambda: None
    on_death: Callable[[], None] = lambda: None
    _running: list[Request] = field(default_factory=list)
    _released: set[int] = field(default_factory=set)
    _seen: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    _generation: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def reset(self) -> None:
        """Forget scripts and records; nothing must run."""
        with self._lock:
            self.default, self.is_down = Script(), False
            self.scripts.clear()
            self.requests.clear()
            self._released.clear()
            self._seen.clear()
            self.most_requests = self.most_blocks = self.num_deaths = 0

    @property
    def running(self) -> list[Request]:
        with self._lock:
            return [*self._running]

    @property
    def used_blocks(self) -> int:
        """Blocks that the requests inside may come to need."""
        return sum(map(self.blocks_of, self.running))

    def blocks_of(self, request: Request) -> int:
        return -(-(request.prompt_tokens + request.max_tokens) // self.tokens_per_block)

    def marks(self) -> list[int]:
        """List the marks of all requests in the order of their arrival."""
        return [each.mark for each in [*self.requests]]

    def arrivals(self) -> list[int]:
        """List each mark once, in the order in which the first requests with them arrived."""
        return list(dict.fromkeys(self.marks()))

    def of(self, mark: int) -> list[Request]:
        """List the requests with a mark."""
        return [each for each in [*self.requests] if each.mark == mark]

    def release(self, *marks: int) -> None:
        """Let the held requests with these marks go on, and all later ones."""
        self._released.update(marks)

    def release_all(self) -> None:
        """Let every request go on."""
        self.release(*self.scripts, *self.marks())
        self.default = Script()

    def are_held(self, *marks: int) -> bool:
        """Return True if requests with each of these marks are held."""
        return set(marks) <= {each.mark for each in self.running if self._is_held(each)}

    def holding(self, *marks: int) -> None:
        """Wait until requests with each of these marks are held."""
        eventually(lambda: self.are_held(*marks), what=f"the engine holds {marks}")

    def die(self) -> None:
        """Lose all requests and connections, as a killed process does; it serves again at once."""
        with self._lock:
            self._generation += 1
            self.num_deaths += 1
            self._running.clear()
        self.on_death()

    def begin(self, ids: Sequence[int], *, max_tokens: int, name: str) -> Request | None:
        """Take a request in; None: it is a probe.

        Raises:
            RefusedError: the script refuses it.
            DiedError: the engine dies of it.
        """
        mark = oracle.mark_in(ids)
        if mark is None:
            assert max_tokens == 1, "only probes have no mark"
            self.num_probes += 1
            return None
        script = self._script(mark)
        if script.refuses_with is not None:
            raise RefusedError(script.refuses_with)
        with self._lock:
            version = script.versions[min(self._seen[mark], len(script.versions) - 1)]
            self._seen[mark] += 1
            answer = oracle.ids_of(oracle.text_of(mark, script.length, version=version))
            request = Request(
                mark,
                name,
                len(ids),
                max_tokens,
                oracle.num_given(ids, answer),
                answer,
                self._generation,
                tuple(each.mark for each in self._running),
            )
            self.requests.append(request)
            self._running.append(request)
            self.most_requests = max(self.most_requests, len(self._running))
            self.most_blocks = max(self.most_blocks, self.used_blocks)
        self.watch()
        if script.kills:
            self.die()
            raise DiedError
        return request

    def tokens(
        self, request: Request, *, is_gone: Callable[[], bool]
    ) -> Iterator[tuple[int | None, str | None]]:
        """Yield the tokens that the request asks for, the last one with the reason of the end.

        The token that ends the whole answer is not shown: in its place comes None. Ends early, without a
        reason, if the request was aborted or its connection cut.

        Raises:
            DiedError: the engine has died.
        """
        try:
            wanted = request.answer[request.num_given :][: request.max_tokens]
            for place, token in enumerate(wanted, start=1):
                if not self._wait(request, is_gone):
                    return
                time.sleep(self._script(request.mark).pace_seconds)
                request.num_sent += 1
                yield token, "length" if place == request.max_tokens else None
            if len(wanted) < request.max_tokens and self._wait(request, is_gone):
                yield None, "stop"
        finally:
            self.end(request)

    def end(self, request: Request) -> None:
        """Free what the request holds."""
        with self._lock:
            request.has_ended = True
            self._running = [each for each in self._running if each is not request]

    def abort(self, name: str) -> None:
        """End the request of this name."""
        for each in self.running:
            each.is_aborted |= each.name == name

    def _script(self, mark: int) -> Script:
        return self.scripts.get(mark, self.default)

    def _is_held(self, request: Request) -> bool:
        script = self._script(request.mark)
        place = request.num_given + request.num_sent
        is_released = request.is_released or request.mark in self._released
        return script.hold_at is not None and place >= script.hold_at and not is_released

    def _wait(self, request: Request, is_gone: Callable[[], bool]) -> bool:
        """Wait while the request is held. Returns False if it is over."""
        is_deaf = self._script(request.mark).is_deaf
        while True:
            if request.generation != self._generation:
                raise DiedError
            is_held = self._is_held(request)
            if (request.is_aborted or is_gone()) and not (is_deaf and is_held):
                return False
            if not is_held:
                return True
            time.sleep(_LOOK_SECONDS)
