"""What a load test sends its prompts to."""

from cli.load.figures import Timing
from jobs.prompts.tokenizer import Tokenizer


class Target:
    """Something that answers prompts.

    Attributes:
        name: for the report.
    """

    name: str

    def ask(self, prompt: str, tokenizer: Tokenizer) -> Timing:
        """The times of one answer.

        Raises:
            LoadError: there is none.
        """
        raise NotImplementedError
