"""The asynchronous client: the same calls as `Client`, each awaited; the documents of a run in tasks."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import httpx2

from longbatch import calls, http, runs, webhooks
from longbatch.client import open_http, read_readiness, send_with
from longbatch.documents.run import DocumentRun, Observer
from longbatch.documents.sources import SourceFile
from longbatch.errors import ApiError, LongbatchError
from longbatch.flows import TIMEOUT_SECONDS, Flow, Pause, Reply, Request, Step, read
from longbatch.objects import Answer, DocumentSummary, Extraction, JobFields, Run
from longbatch.runs import DEFAULT_CONCURRENCY, PathName, RunPlan
from longbatch.server import find_server

if TYPE_CHECKING:
    from pydantic import BaseModel
    from typing_extensions import Self, Unpack

    from longbatch.options import AskOptions, ExtractOptions, JobOptions, JobState, SummaryOptions, Task
    from longbatch.schemas import Schema

    M = TypeVar("M", bound=BaseModel)

T = TypeVar("T")


class AsyncClient:
    """A client of one server, for one event loop.

    Args and attributes as of `Client`.

    Raises:
        InvalidUrlError: the URL is not one of HTTP.
        InvalidKeyError: the key has characters that no header can carry.
    """

    def __init__(
        self, api_url: str | None = None, api_key: str | None = None, *, webhook_secret: str | None = None
    ) -> None:
        self._server = find_server(api_url, api_key)
        self.api_url = self._server.url
        http.check_url(self._server)
        self._http = httpx2.AsyncClient(
            base_url=self._server.url,
            timeout=TIMEOUT_SECONDS,
            trust_env=False,
            verify=http.trust(self._server),
            headers=http.headers(self._server),
            limits=http.LIMITS,
        )
        # Asynchronous uploads lose the answer of a server that refuses a body before its end.
        self._uploads = open_http(self._server)
        self.jobs = AsyncJobs(self)
        self.runs = AsyncRuns(self)
        self.documents = AsyncDocuments(self)
        self.webhooks = webhooks.Webhooks(webhook_secret)

    async def __aenter__(self) -> "Self":
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()
        self._uploads.close()

    def summarize(
        self,
        paths: PathName | Sequence[PathName],
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        again: bool = False,
        follow_links: bool = False,
        observer: Observer | None = None,
        **options: "Unpack[SummaryOptions]",
    ) -> AsyncGenerator[DocumentSummary, None]:
        """Summarize documents; see `Client.summarize`."""
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
    ) -> AsyncGenerator[Answer, None]:
        """Ask every document every question; see `Client.ask`."""
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
    ) -> "AsyncGenerator[Extraction[M], None]": ...

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
    ) -> "AsyncGenerator[Extraction[dict[str, Any]], None]": ...

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
    ) -> AsyncGenerator[Extraction[Any], None]:
        """Extract the fields of a schema from every document; see `Client.extract`."""
        plan = runs.extractions(
            paths, schema, options, again=again, follow_links=follow_links, observer=observer
        )
        return self._each(plan, runs.checked_concurrency(concurrency))

    async def version(self) -> dict[str, Any]:
        """Fetch the server's `version` and `model`."""
        return await self.run(calls.version())

    async def readiness(self) -> dict[str, Any]:
        """Fetch each component of the server by name, with `ready` and `detail`."""
        return read_readiness(await self._send(Request("GET", "/health/ready")))

    async def call(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, json: object = None
    ) -> dict[str, Any]:
        """Call any route of the API; only reads are repeated."""
        return await self.run(calls.call(method, path, params=params, json=json))

    async def events(self, path: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Yield the name and data of each event of a stream until it ends; see `Client.events`."""
        reader, tries = http.EventReader(), 0
        while True:
            try:
                async with self._stream(path, headers=reader.headers()) as answer:
                    async for block in answer.aiter_bytes():
                        for event in reader.events(block):
                            tries = 0
                            yield event
            except (httpx2.RequestError, ApiError) as error:
                tries += 1
                await asyncio.sleep(http.pause_before_stream(self._server, error, tries=tries))
            else:
                return

    async def run(self, flow: Flow[T]) -> T:
        """Perform the steps of a flow and return its result; cancelling the task ends it."""
        result: object = None
        failure: BaseException | None = None
        try:
            while True:
                try:
                    step = flow.throw(failure) if failure is not None else flow.send(result)
                except StopIteration as ended:
                    found: T = ended.value
                    return found
                result = failure = None
                try:
                    result = await self._perform(step)
                except (LongbatchError, OSError, ValueError) as error:  # the flow's to handle
                    failure = error
        finally:
            flow.close()

    async def _each(self, plan: RunPlan[T], concurrency: int) -> AsyncGenerator[T, None]:
        """Process the documents in tasks, as many at once as the run may have."""
        run = await self.run(plan.begin(concurrency=concurrency))
        sources = plan.ordered(run)
        estimating = asyncio.create_task(self.run(plan.estimate(run)))
        waiting: set[asyncio.Task[list[T]]] = set()
        try:
            while True:
                while len(waiting) < concurrency:
                    source = await asyncio.to_thread(next, sources, None)
                    if source is None:
                        break
                    waiting.add(asyncio.create_task(self._process(plan, run, source)))
                if not waiting:
                    return
                ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                errors = [error for task in ended if (error := task.exception()) is not None]
                for task in ended:
                    if task.exception() is None:
                        for found in task.result():
                            yield found
                if errors:
                    raise errors[0]
        finally:
            estimating.cancel()
            for task in waiting:
                task.cancel()
            await asyncio.gather(estimating, *waiting, return_exceptions=True)

    async def _process(self, plan: RunPlan[T], run: DocumentRun, source: SourceFile) -> list[T]:
        return await self.run(plan.objects(run, source))

    async def _perform(self, step: Step) -> object:
        if isinstance(step, Request):
            return await self._send(step)
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        return await asyncio.to_thread(step.call)

    async def _send(self, request: Request) -> Reply:
        if request.file is not None:
            return await asyncio.to_thread(send_with, self._uploads, self._server, request)
        options: dict[str, Any] = {} if request.json is None else {"json": request.json}
        try:
            answer = await self._http.request(
                request.method,
                request.path,
                params=request.params,
                headers=request.headers,
                timeout=request.timeout,
                **options,
            )
        except httpx2.RequestError as error:
            raise http.failure_of(self._server, error) from error
        return Reply(answer.status_code, answer.headers, answer.content)

    @asynccontextmanager
    async def _stream(self, path: str, **options: Any) -> AsyncIterator[httpx2.Response]:  # noqa: ANN401  # of httpx2
        async with self._http.stream("GET", path, **options) as answer:
            if not answer.is_success:
                read(Reply(answer.status_code, answer.headers, await answer.aread()))
            yield answer

    async def _bytes(self, path: str, params: Mapping[str, Any]) -> AsyncIterator[bytes]:
        try:
            async with self._stream(path, params=params) as answer:
                async for block in answer.aiter_bytes():
                    yield block
        except httpx2.RequestError as error:
            raise http.failure_of(self._server, error) from error


class AsyncJob(JobFields):
    """A job of an asynchronous client."""

    def __init__(self, client: AsyncClient, raw: Mapping[str, Any]) -> None:
        super().__init__(raw)
        object.__setattr__(self, "_client", client)

    _client: AsyncClient

    async def wait(self, timeout: float | None = None) -> "AsyncJob":  # as of `Job`
        """Wait until the job ends, and return it with its output; see `Job.wait`."""
        return AsyncJob(self._client, await self._client.run(calls.finished_job(self.id, timeout=timeout)))

    async def refresh(self) -> "AsyncJob":
        """Fetch the job again."""
        return await self._client.jobs.get(self.id)

    async def result(self) -> "AsyncJob":
        """Return the job with its output, if it has ended."""
        return self if "output" in self.raw else await self.refresh()

    async def cancel(self) -> "AsyncJob":
        """Cancel the job, or ask the engine to stop."""
        return await self._client.jobs.cancel(self.id)


class AsyncJobs:
    """The jobs of the key's tenant."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def submit(
        self,
        input: str | Sequence[Mapping[str, Any]],  # noqa: A002  # as the API has it
        *,
        idempotency_key: str | None = None,
        **options: "Unpack[JobOptions]",
    ) -> AsyncJob:
        """Submit a job; see `Jobs.submit`."""
        body = {"input": input, **options}
        return AsyncJob(self._client, await self._client.run(calls.submit_job(body, key=idempotency_key)))

    async def get(self, job_id: str) -> AsyncJob:
        """Fetch a job, with its output if it has ended."""
        return AsyncJob(self._client, await self._client.run(calls.job_with_output(job_id)))

    async def list(
        self, *, state: "JobState | None" = None, task: "Task | None" = None, custom_id: str | None = None
    ) -> AsyncIterator[AsyncJob]:
        """Yield jobs, newest first, without their outputs; see `Jobs.list`."""
        filters = {"state": state, "task": task, "custom_id": custom_id}
        async for each in _pages(self._client, "/v1/jobs", filters):
            yield AsyncJob(self._client, each)

    async def cancel(self, job_id: str) -> AsyncJob:
        """Cancel a job, or ask the engine to stop; a job that has ended stays as it is."""
        return AsyncJob(self._client, await self._client.run(calls.cancel_job(job_id)))


class AsyncRuns:
    """What `summarize`, `ask` and `extract` started, here or on the command line."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(self, kind: str | None = None) -> AsyncIterator[Run]:
        """Yield runs of each kind, newest first; see `Runs.list`."""
        for each in runs.run_kinds(kind):
            after: str | None = None
            while True:
                found, after = await self._client.run(runs.run_pages(each, after))
                for run in found:
                    yield run
                if after is None:
                    break


class AsyncDocuments:
    """The documents of the key's tenant."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def add(
        self, path: PathName, *, kind: str | None = None, encoding: str | None = None
    ) -> dict[str, Any]:
        """Upload a file and return its document; the same bytes are the same document.

        `encoding` is that of a text, such as `shift_jis`; by default the server finds out.
        """
        (name,) = runs.names_of(path)
        return await self._client.run(calls.add_document(Path(name), kind=kind, encoding=encoding))

    async def get(self, document_id: str) -> dict[str, Any]:
        """Fetch a document."""
        return await self._client.run(calls.document(document_id))

    def list(self, *, state: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """Yield documents, newest first."""
        return _pages(self._client, "/v1/documents", {"state": state})

    async def delete(self, document_id: str) -> None:
        """Delete a document."""
        await self._client.run(calls.delete_document(document_id))

    def text(self, document_id: str, **params: int) -> AsyncIterator[bytes]:
        """Yield the UTF-8 text of a document as it arrives; see `Documents.text`."""
        return self._client._bytes(calls.text_path(document_id), params)  # noqa: SLF001  # one module


async def _pages(client: AsyncClient, path: str, filters: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
    after: str | None = None
    while True:
        page = await client.run(calls.page(path, {**filters, "after": after}))
        for each in page["data"]:
            yield each
        if not page["has_more"]:
            return
        after = page["last_id"]
