"""The product over the transformers engine: jobs through the API, Postgres and the worker to a real model."""

from collections.abc import Iterator

import pytest

from cli.stack.options import StackOptions
from cli.stack.servers.transformers_options import TransformersOptions
from cli.stack.stack import Stack
from jobs.prompts.messages import Message
from jobs.prompts.tokenizer import Tokenizer
from support import eventually
from system_support import Client, Gauges, text_of
from torch_support import Reference, tiny_model

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """A tiny model with the vocabulary of the bundled tokenizer."""
    return tiny_model(
        tmp_path_factory.mktemp("spoken"),
        vocab_size=128_256,
        hidden_size=32,
        intermediate_size=64,
        max_position_embeddings=8192,
        bos_token_id=128_000,
        eos_token_id=128_009,
    )


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, spoken: Reference) -> Iterator[Stack]:
    engine = TransformersOptions(
        model_dir=spoken.directory,
        device="cpu",
        dtype="float32",
        sampling=False,  # to sort 128,256 probabilities takes longer than to find them
        kv_cache_tokens=8192,
        max_num_tokens=512,
    )
    options = StackOptions(directory=tmp_path_factory.mktemp("stack"), api_port=0, engine=engine)
    with Stack(options) as made:
        yield made
    made.remove_data()


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.urls) as made:
        yield made


@pytest.fixture
def gauges(stack: Stack) -> Gauges:
    return Gauges(stack.urls.triton_metrics or "")


def test_a_job_says_what_the_model_says(client: Client, spoken: Reference) -> None:
    tokenizer = Tokenizer.load()
    job = client.finished(client.submit(text_of(3000), task="generate", max_tokens=20)["id"])
    prompt = tokenizer.encode_messages([Message("user", text_of(3000))])
    assert (job["state"], job["prompt_tokens"]) == ("completed", len(prompt))
    assert client.result(job["id"])["output"] == tokenizer.decode(spoken.greedy(prompt.tolist(), 20))


def test_ten_jobs_complete_and_none_ever_waits_in_the_engine(client: Client, gauges: Gauges) -> None:
    with gauges.sampled():
        jobs = [client.submit(text_of(800 * place + 500), max_tokens=60) for place in range(10)]
        ended = [client.finished(job["id"], timeout=120) for job in jobs]
    assert [job["state"] for job in ended] == ["completed"] * 10
    assert max(sample["requests{active}"] for sample in gauges.samples) <= 4
    assert gauges.longest("local{queued}") <= 1
    gauges.until_idle()


def test_a_cancelled_job_frees_its_blocks(client: Client, gauges: Gauges) -> None:
    job = client.submit(text_of(2000), max_tokens=4000)
    client.streaming(job["id"])
    client.cancel(job["id"])
    ended = client.finished(job["id"])
    gauges.until_idle()
    assert ended["state"] == "cancelled"
    assert ended["completion_tokens"] < 4000, "the engine stopped before its end"


def test_jobs_go_on_after_the_server_was_killed(stack: Stack, client: Client) -> None:
    job = client.submit(text_of(500), max_tokens=1500)
    client.streaming(job["id"])
    stack.send("triton")
    ended = client.finished(job["id"], timeout=120)
    assert ended["state"] == "completed"
    assert ended["completion_tokens"] == 1500
    eventually(lambda: client.job(job["id"])["state"] == "completed")
