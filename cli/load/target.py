"""The target of a load test."""

from cli.load.figures import Timing
from jobs.prompts.tokenizer import Tokenizer


class Target:
    """A server that answers prompts.

    Attributes:
        name: shown in the report.
    """

    name: str

    def ask(self, prompt: str, tokenizer: Tokenizer) -> Timing:
        """Send one request and time it.

        Raises:
            LoadError: the request failed.
        """
        raise NotImplementedError
