"""The client: each call in the calling thread, the documents of a run in threads."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Event as Flag
from threading import Lock, Semaphore, Thread
from typing import TYPE_CHECKING, Any, TypeVar, overload

import httpx2

from longbatch import calls, http, runs, webhooks
from longbatch.documents.run import Observer
from longbatch.errors import ApiError, LongbatchError, StoppedError
from longbatch.flows import TIMEOUT_SECONDS, Flow, Pause, Reply, Request, Step, read
from longbatch.objects import Answer, DocumentSummary, Extraction, JobFields, Run
from longbatch.runs import DEFAULT_CONCURRENCY, PathName, RunPlan
from longbatch.server import ServerAccess, find_server

if TYPE_CHECKING:
    from pydantic import BaseModel
    from typing_extensions import Self, Unpack

    from longbatch.options import AskOptions, ExtractOptions, JobOptions, JobState, SummaryOptions, Task
    from longbatch.schemas import Schema

    M = TypeVar("M", bound=BaseModel)

T = TypeVar("T")
R = TypeVar("R")


class Client:
    """A client of one server; threads may share it.

    Args:
        api_url: of the server; by default LONGBATCH_API_URL, then the local stack's.
        api_key: by default LONGBATCH_API_KEY, then the local stack's.
        webhook_secret: by default LONGBATCH_WEBHOOK_SECRET.

    Attributes:
        api_url: of the server.
        jobs: submit, get, list and cancel jobs.
        runs: list what summarize, ask and extract started.
        documents: upload, get, list and delete documents.
        webhooks: verify deliveries.

    Raises:
        InvalidUrlError: the URL is not one of HTTP.
        InvalidKeyError: the key has characters that no header can carry.
    """

    def __init__(
        self, api_url: str | None = None, api_key: str | None = None, *, webhook_secret: str | None = None
    ) -> None:
        self._server = find_server(api_url, api_key)
        self.api_url = self._server.url
        self._http = open_http(self._server)
        self.jobs = Jobs(self)
        self.runs = Runs(self)
        self.documents = Documents(self)
        self.webhooks = webhooks.Webhooks(webhook_secret)

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def summarize(
        self,
        paths: PathName | Sequence[PathName],
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        again: bool = False,
        follow_links: bool = False,
        observer: Observer | None = None,
        **options: "Unpack[SummaryOptions]",
    ) -> Generator[DocumentSummary, None, None]:
        """Summarize documents; yield each summary as it ends.

        The same files with the same options resume an earlier run. A document that fails has an `error`.

        Args:
            paths: files and folders to search for documents; or `s3://bucket/prefix`.
            concurrency: documents to process at once.
            again: start a new run even if an earlier one has a result.
            follow_links: read what symbolic links in a folder lead to outside of it.
            observer: follows the documents.
            options: of every summary.

        Raises:
            NoDocumentsError: the paths hold none.
            ServerUnreachableError: no server answers.
            ApiError: the server refuses every request.
        """
        plan = runs.summaries(paths, options, again=again, follow_links=follow_links, observer=observer)
        return self._each(plan, runs.checked_concurrency(concurrency))

    def ask(
        self,
        paths: PathName | Sequence[PathName],
        questions: str | Sequence[str],
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        again: bool = False,
        follow_links: bool = False,
        observer: Observer | None = None,
        **options: "Unpack[AskOptions]",
    ) -> Generator[Answer, None, None]:
        """Ask every document every question; yield the answers of each document as it ends.

        Args, resuming and errors as of `summarize`.
        """
        plan = runs.answers(
            paths, questions, options, again=again, follow_links=follow_links, observer=observer
        )
        return self._each(plan, runs.checked_concurrency(concurrency))

    @overload
    def extract(
        self,
        paths: PathName | Sequence[PathName],
        schema: "type[M]",
        *,
        concurrency: int = ...,
        again: bool = ...,
        follow_links: bool = ...,
        observer: Observer | None = ...,
        **options: "Unpack[ExtractOptions]",
    ) -> "Generator[Extraction[M], None, None]": ...

    @overload
    def extract(
        self,
        paths: PathName | Sequence[PathName],
        schema: "Schema",
        *,
        concurrency: int = ...,
        again: bool = ...,
        follow_links: bool = ...,
        observer: Observer | None = ...,
        **options: "Unpack[ExtractOptions]",
    ) -> "Generator[Extraction[dict[str, Any]], None, None]": ...

    def extract(
        self,
        paths: PathName | Sequence[PathName],
        schema: "type[BaseModel] | Schema",
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        again: bool = False,
        follow_links: bool = False,
        observer: Observer | None = None,
        **options: "Unpack[ExtractOptions]",
    ) -> Generator[Extraction[Any], None, None]:
        """Extract the fields of a schema from every document; yield each extraction as it ends.

        Args, resuming and errors as of `summarize`; `schema` is a pydantic model, a dict of types by field
        such as `{"supplier": str, "total": float}`, or JSON Schema with properties.
        """
        plan = runs.extractions(
            paths, schema, options, again=again, follow_links=follow_links, observer=observer
        )
        return self._each(plan, runs.checked_concurrency(concurrency))

    def version(self) -> dict[str, Any]:
        """Fetch the server's `version` and `model`."""
        return self.run(calls.version())

    def readiness(self) -> dict[str, Any]:
        """Fetch each component of the server by name, with `ready` and `detail`."""
        found: dict[str, Any] = read_readiness(self._send(Request("GET", "/health/ready")))
        return found

    def call(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, json: object = None
    ) -> dict[str, Any]:
        """Call any route of the API; only reads are repeated."""
        return self.run(calls.call(method, path, params=params, json=json))

    def events(self, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name and data of each event of a stream until it ends.

        Reconnects after a restart of the server; text continues after what was received.

        Args:
            path: of the stream, such as `/v1/jobs/job_…/events`.
        """
        reader, tries = http.EventReader(), 0
        while True:
            try:
                with self._stream(path, headers=reader.headers()) as answer:
                    for block in answer.iter_bytes():
                        for event in reader.events(block):
                            tries = 0
                            yield event
            except (httpx2.RequestError, ApiError) as error:
                tries += 1
                time.sleep(http.pause_before_stream(self._server, error, tries=tries))
            else:
                return

    def run(self, flow: Flow[T], *, stop: Flag | None = None) -> T:
        """Perform the steps of a flow and return its result.

        Args:
            flow: of `longbatch.calls`, `documents` or `runs`.
            stop: once set, ends every wait with StoppedError.
        """
        result: object = None
        failure: BaseException | None = None
        while True:
            try:
                step = flow.throw(failure) if failure is not None else flow.send(result)
            except StopIteration as ended:
                found: T = ended.value
                return found
            result = failure = None
            try:
                result = self._perform(step, stop)
            except (LongbatchError, OSError, ValueError) as error:  # the flow's to handle
                failure = error

    def run_each(
        self,
        flow_of: Callable[[R], Flow[T]],
        items: Iterable[R],
        *,
        concurrency: int,
        stop: Flag | None = None,
    ) -> Iterator[tuple[int, T]]:
        """Perform a flow for each item in threads; yield its place and result as each ends."""
        return in_threads(lambda item: self.run(flow_of(item), stop=stop), items, num_threads=concurrency)

    def _each(self, plan: RunPlan[T], concurrency: int) -> Generator[T, None, None]:
        stop = Flag()
        try:
            run = self.run(plan.begin(concurrency=concurrency))
            self._meanwhile(plan.estimate(run), stop)
            each = self.run_each(
                lambda source: plan.objects(run, source),
                plan.ordered(run),
                concurrency=concurrency,
                stop=stop,
            )
            for _, found in each:
                yield from found
        finally:
            stop.set()

    def _meanwhile(self, flow: Flow[None], stop: Flag) -> None:
        """Perform a flow in a thread of its own, until it ends or a flag is set."""

        def perform() -> None:
            with suppress(LongbatchError, RuntimeError):  # the client may be closed by then
                self.run(flow, stop=stop)

        Thread(target=perform, name="estimate", daemon=True).start()

    def _perform(self, step: Step, stop: Flag | None) -> object:
        if stop is not None and stop.is_set():
            raise StoppedError
        if isinstance(step, Request):
            return self._send(step)
        if isinstance(step, Pause):
            if stop is None:
                time.sleep(step.seconds)
            elif stop.wait(step.seconds):
                raise StoppedError
            return None
        return step.call()

    def _send(self, request: Request) -> Reply:
        return send_with(self._http, self._server, request)

    @contextmanager
    def _stream(self, path: str, **options: Any) -> Iterator[httpx2.Response]:  # noqa: ANN401  # of httpx2
        with self._http.stream("GET", path, **options) as answer:
            if not answer.is_success:
                read(Reply(answer.status_code, answer.headers, answer.read()))
            yield answer

    def _bytes(self, path: str, params: Mapping[str, Any]) -> Iterator[bytes]:
        try:
            with self._stream(path, params=params) as answer:
                yield from answer.iter_bytes()
        except httpx2.RequestError as error:
            raise http.failure_of(self._server, error) from error


class Job(JobFields):
    """A job of a client."""

    def __init__(self, client: Client, raw: Mapping[str, Any]) -> None:
        super().__init__(raw)
        object.__setattr__(self, "_client", client)

    _client: Client

    def wait(self, timeout: float | None = None) -> "Job":
        """Wait until the job ends, and return it with its output.

        Raises:
            WaitTimeoutError: it did not end within `timeout` seconds; it goes on.
        """
        return Job(self._client, self._client.run(calls.finished_job(self.id, timeout=timeout)))

    def refresh(self) -> "Job":
        """Fetch the job again."""
        return self._client.jobs.get(self.id)

    def result(self) -> "Job":
        """Return the job with its output, if it has ended."""
        return self if "output" in self.raw else self.refresh()

    def cancel(self) -> "Job":
        """Cancel the job, or ask the engine to stop."""
        return self._client.jobs.cancel(self.id)


class Jobs:
    """The jobs of the key's tenant."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit(
        self,
        input: str | Sequence[Mapping[str, Any]],  # noqa: A002  # as the API has it
        *,
        idempotency_key: str | None = None,
        **options: "Unpack[JobOptions]",
    ) -> Job:
        """Submit a job.

        Args:
            input: the prompt, or a chat's messages.
            idempotency_key: requests with the same key create one job; by default a new key, which
                covers retries.
            options: of the job.
        """
        body = {"input": input, **options}
        return Job(self._client, self._client.run(calls.submit_job(body, key=idempotency_key)))

    def get(self, job_id: str) -> Job:
        """Fetch a job, with its output if it has ended."""
        return Job(self._client, self._client.run(calls.job_with_output(job_id)))

    def list(
        self, *, state: "JobState | None" = None, task: "Task | None" = None, custom_id: str | None = None
    ) -> Iterator[Job]:
        """Yield jobs, newest first, without their outputs."""
        filters = {"state": state, "task": task, "custom_id": custom_id}
        for each in _pages(self._client, "/v1/jobs", filters):
            yield Job(self._client, each)

    def cancel(self, job_id: str) -> Job:
        """Cancel a job, or ask the engine to stop; a job that has ended stays as it is."""
        return Job(self._client, self._client.run(calls.cancel_job(job_id)))


class Runs:
    """What `summarize`, `ask` and `extract` started, here or on the command line."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self, kind: str | None = None) -> Iterator[Run]:
        """Yield runs of each kind, newest first.

        Args:
            kind: `summary`, `answers` or `extraction`; None for all.
        """
        for each in runs.run_kinds(kind):
            after: str | None = None
            while True:
                found, after = self._client.run(runs.run_pages(each, after))
                yield from found
                if after is None:
                    break


class Documents:
    """The documents of the key's tenant."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def add(self, path: PathName, *, kind: str | None = None, encoding: str | None = None) -> dict[str, Any]:
        """Upload a file and return its document; the same bytes are the same document.

        `encoding` is that of a text, such as `shift_jis`; by default the server finds out.
        """
        (name,) = runs.names_of(path)
        return self._client.run(calls.add_document(Path(name), kind=kind, encoding=encoding))

    def get(self, document_id: str) -> dict[str, Any]:
        """Fetch a document."""
        return self._client.run(calls.document(document_id))

    def list(self, *, state: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield documents, newest first."""
        return _pages(self._client, "/v1/documents", {"state": state})

    def delete(self, document_id: str) -> None:
        """Delete a document."""
        self._client.run(calls.delete_document(document_id))

    def text(self, document_id: str, **params: int) -> Iterator[bytes]:
        """Yield the UTF-8 text of a document as it arrives.

        Args:
            document_id: `doc_…`.
            params: `start` and `end` in characters, or `page`.
        """
        return self._client._bytes(calls.text_path(document_id), params)  # noqa: SLF001  # one module


def open_http(server: ServerAccess) -> httpx2.Client:
    """Make the connections to a server.

    Raises:
        InvalidUrlError: its URL is not one of HTTP.
    """
    http.check_url(server)
    return httpx2.Client(
        base_url=server.url,
        timeout=TIMEOUT_SECONDS,
        trust_env=False,
        verify=http.trust(server),
        headers=http.headers(server),
        limits=http.LIMITS,
    )


def send_with(connections: httpx2.Client, server: ServerAccess, request: Request) -> Reply:
    """Send a request and read its whole answer.

    Raises:
        ServerUnreachableError: no complete answer arrived.
        FileChangedError: the file changed while it was sent.
        OSError: the file cannot be read.
    """
    options: dict[str, Any] = {
        "params": request.params,
        "headers": request.headers,
        "timeout": request.timeout,
    }
    if request.json is not None:
        options["json"] = request.json
    with ExitStack() as files:
        if request.file is not None:
            options["content"] = files.enter_context(request.file.open("rb"))
        try:
            answer = connections.request(request.method, request.path, **options)
        except httpx2.RequestError as error:
            raise http.failure_of(server, error, is_upload=request.file is not None) from error
    return Reply(answer.status_code, answer.headers, answer.content)


def in_threads(
    work: Callable[[R], T], items: Iterable[R], *, num_threads: int
) -> Generator[tuple[int, T], None, None]:
    """Run the work for each item in threads; yield place and result as each ends.

    Takes an item when a thread is free for it and few results wait to be read. No further item is taken once
    the generator is closed or has raised. The threads are daemons, so an interrupted process does not wait.
    """
    waiting, taking = enumerate(items), Lock()
    ended: SimpleQueue[tuple[int, T] | BaseException | None] = SimpleQueue()
    room, is_closed = Semaphore(2 * num_threads), Flag()

    def serve() -> None:
        try:
            while True:
                room.acquire()
                if is_closed.is_set():
                    return
                with taking:
                    place, item = next(waiting, (-1, None))
                if item is None:
                    return
                ended.put((place, work(item)))
        except BaseException as error:  # noqa: BLE001  # raised again by the consumer of the results
            ended.put(error)
        finally:
            ended.put(None)

    try:
        for number in range(num_threads):
            Thread(target=serve, name=f"document-{number}", daemon=True).start()
        num_left = num_threads
        while num_left:
            each = ended.get()
            if each is None:
                num_left -= 1
                room.release()  # for another one that waits to see that nothing is left
            elif isinstance(each, BaseException):
                raise each
            else:
                yield each
                room.release()
    finally:
        is_closed.set()
        room.release(num_threads)


def read_readiness(reply: Reply) -> dict[str, Any]:
    """Read the components of a server's readiness, whether it is ready or not.

    Raises:
        ApiError: the answer does not come from a Longbatch server.
    """
    found = read(Reply(200, reply.headers, reply.body))
    components: dict[str, Any] = found.get("components") or read(reply)
    return components


def _pages(client: Client, path: str, filters: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    after: str | None = None
    while True:
        page = client.run(calls.page(path, {**filters, "after": after}))
        yield from page["data"]
        if not page["has_more"]:
            return
        after = page["last_id"]
