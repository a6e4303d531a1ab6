"""llama.cpp's server on a random loopback port; it holds nothing that must survive."""

import json
import os
import sys
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Final

from cli.stack.errors import StackError
from cli.stack.loopback import ask, succeeds
from cli.stack.ports import LOOPBACK, free_port
from cli.stack.processes import Launch
from cli.stack.server import EmbeddedServer
from cli.stack.servers.llama_options import LlamaModel, server_options
from jobs.prompts.gguf_tokenizer import ensure_gguf_tokenizer
from jobs.prompts.tokenizer import Tokenizer

_RUNNER: Final = Path(__file__).with_name("llama_cpp_runner.py")
# Where two splitters differ at all, they differ on one of these.
_SAMPLES: Final = (
    "The 3 naïve façades cost 1234567.89€ in 2026; I'LL say it's 'fine', we'd've DON'T!!",
    "  two\n\n\tdef f(x):  return x**2  # ÷ 10 %\r\n \n   end   ",
    "希望と平和。한국어 надежда नमस्ते שלום مرحبا ٣٤٥ Ⅷ ½ 🜂👩‍🚀 e\u0301",
)


class EmbeddedLlamaCpp(EmbeddedServer):
    """A server whose port is chosen by the constructor and stays for the object's whole life."""

    name = "llama_cpp"
    start_timeout = timedelta(seconds=900)  # the weights may come from a slow disk

    def __init__(self, directory: Path, model: LlamaModel) -> None:
        """Build the model's tokenizer in the directory, unless it is there.

        Raises:
            GgufError: this kind of tokenizer cannot be built.
        """
        self.directory = directory
        self.model = model
        self.port = free_port()
        self.tokenizer = ensure_gguf_tokenizer(model.gguf, directory.absolute())

    @property
    def url(self) -> str:
        """The base of its HTTP URLs."""
        return f"http://{LOOPBACK}:{self.port}"

    def launch(self) -> Launch:
        """Return how to start it.

        Raises:
            StackError: the directory is in use.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._hold(self.directory)
        options = server_options(self.model, self.port, LOOPBACK)
        written = [f"{name}={json.dumps(value)}" for name, value in options.items()]
        return Launch(
            argv=(sys.executable, "-P", str(_RUNNER), *written),
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            directory=self.directory.resolve(),
            grace=timedelta(seconds=1),
        )

    def is_ready(self) -> bool:
        """Return True if the model is loaded."""
        return succeeds(self.port, "/health")

    def check_tokenizer(self) -> None:
        """Check that the tokenizer built from the file gives the server's tokens.

        Raises:
            StackError: it does not, so prompts would be counted and sent wrong; or the server ended.
        """
        built = Tokenizer.load(str(self.tokenizer))
        for sample in _SAMPLES:
            asked = {"content": sample, "add_special": False, "parse_special": False}
            status, answer = ask(self.port, "/tokenize", method="POST", body=asked, timeout=10)
            if status != HTTPStatus.OK:
                raise StackError("llama.cpp does not answer /tokenize, so its tokenizer cannot be checked.")
            if json.loads(answer).get("tokens") != built.encode_text(sample).tolist():
                raise StackError(
                    f"The tokenizer built from {self.model.gguf.path} does not give the tokens of llama.cpp's"
                    " own (tokenizer.ggml.pre may be wrong): this model cannot be served."
                )
