"""A run that several threads use."""

from collections.abc import Callable

from claiming.runs import stray_run
from worker.inference.run import Run


class ReportedMeanwhile(Run):
    """A run whose first token the keeper reports between any two looks at `on_first_token`."""

    left: Callable[[], object] | None = None

    @property
    def on_first_token(self) -> Callable[[], object] | None:
        found, self.left = self.left, None
        return found

    @on_first_token.setter
    def on_first_token(self, wake: Callable[[], object] | None) -> None:
        self.left = wake


def test_a_token_that_comes_while_the_first_one_is_reported_does_no_harm() -> None:
    run = ReportedMeanwhile(stray_run().claim, valid_until=0.0)
    wakes: list[None] = []
    run.on_first_token = lambda: wakes.append(None)
    run.note_tokens(1.0, num_tokens=1)
    assert wakes == [None]
