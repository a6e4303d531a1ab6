"""Files and texts of documents, encrypted at rest: sealed in every store, and to readers as they were."""

import fcntl
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

from api_server import Serve, error_of
from batch_support import Service, lines, tools, validate_next
from bucket_support import serving_bucket
from document_support import Extractor, upload
from jobs import database, documents, files, ids
from jobs.database.paging import SearchRange
from jobs.documents.queries import DocumentFilter, search_documents
from jobs.errors import UnavailableError
from jobs.files.object_storage import ObjectStore
from jobs.files.storage import DirectoryStore, PartStore, RowStore
from jobs.models import DEFAULT_TENANT, Document, File, FilePart
from jobs.prompts.tokenizer import Tokenizer
from jobs.sealing.content import PLAIN, ContentSealer, ContentUnreadableError, key_name
from jobs.sealing.keys import name_of
from jobs.settings import DatabaseSettings
from jobs.states.file import FileState
from sealed.sealers import VARIABLES
from searching import stores
from searching.stores import Marks

KEYS = [secrets.token_bytes(32), secrets.token_bytes(32)]
OLD = ContentSealer(KEYS[1:], seals=True)
NEW = ContentSealer(KEYS, seals=True)  # and opens what the old one sealed
OPENS = ContentSealer(KEYS)
STRANGER = ContentSealer([secrets.token_bytes(32)], seals=True)
WORD = "perspicacious"
RAW = b"".join(b'{"line": %d, "text": "%s"}\n' % (number, WORD.encode()) for number in range(1000))

# Makes a store whose parts this seals; all that it makes keep them in one place.
MakeStore = Callable[[ContentSealer], PartStore]
MakeSessions = Callable[[ContentSealer], sessionmaker[Session]]


@pytest.fixture(params=["rows", "directory", "file", "s3"])
def store_of(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeStore]:
    match request.param:
        case "rows":
            yield lambda _sealer: RowStore()
        case "directory":
            yield lambda sealer: DirectoryStore(tmp_path, sealer)
        case "file":
            yield lambda sealer: ObjectStore(f"file://{tmp_path}", sealer)
        case _:
            with serving_bucket() as bucket:
                for name, value in bucket.environment.items():
                    monkeypatch.setenv(name, value)
                yield lambda sealer: ObjectStore("s3://bucket/some/prefix", sealer)


@pytest.fixture
def sessions_of(
    database_settings: DatabaseSettings, sessions: sessionmaker[Session]
) -> Iterator[MakeSessions]:
    """Sessions of the emptied database whose engines seal with this."""
    made = []

    def make(sealer: ContentSealer) -> sessionmaker[Session]:
        made.append(database.make_engine(database_settings, pool_size=2, name="tests", sealer=sealer))
        return database.make_sessions(made[-1])

    assert sessions
    yield make
    for each in made:
        each.dispose()


def keep(sessions: sessionmaker[Session], pieces: list[bytes], store: PartStore) -> UUID:
    """A file of these parts."""
    with sessions.begin() as session:
        file = files.create(
            session,
            tenant_id=DEFAULT_TENANT,
            purpose=files.OUTPUT,
            filename="results.jsonl",
            state=FileState.GROWING,
        )
        for each in pieces:
            files.append(session, file, [each], store)
        return file.id


def read(sessions: sessionmaker[Session], file_id: UUID, store: PartStore, *, offset: int = 0) -> bytes:
    with sessions() as session:
        return b"".join(files.read_chunks(session, file_id, store, offset=offset))


def test_a_file_is_sealed_where_it_is_kept_and_whole_to_its_readers(
    store_of: MakeStore, sessions_of: MakeSessions, tmp_path: Path
) -> None:
    marks = Marks([WORD])
    pieces = [RAW[:5000], RAW[5000:5001], RAW[5001:]]
    plain = sessions_of(PLAIN)
    known = keep(plain, pieces, store_of(PLAIN))
    found = {*stores.in_database(plain, marks), *stores.in_files(tmp_path, marks)}
    with plain.begin() as session:
        store_of(PLAIN).drop(files.part_keys(session, known))
        files.truncate(session, session.get_one(File, known))
    sealing = sessions_of(NEW)
    file_id = keep(sealing, pieces, store_of(NEW))
    with sealing() as session:
        heads = [store_of(NEW).head(key) for key in files.part_keys(session, file_id)]
    assert {key_name(head) for head in heads} <= {name_of(KEYS[0]).hex()}
    assert not stores.in_database(plain, marks)
    assert not stores.in_files(tmp_path, marks)
    assert found or heads, "the search finds what is not sealed, but for a bucket"
    for offset in (0, 1, 4999, 5000, 5001, 5002, len(RAW) - 1, len(RAW)):
        assert read(sealing, file_id, store_of(NEW), offset=offset) == RAW[offset:]
    with sealing() as session:
        assert files.get(session, file_id, tenant_id=DEFAULT_TENANT).num_bytes == len(RAW)
        extents = session.execute(
            select(FilePart.start, FilePart.num_bytes).where(FilePart.file_id == file_id)
        )
        assert sorted(tuple(each) for each in extents) == [(0, 5000), (5000, 1), (5001, len(RAW) - 5001)]


def test_parts_that_are_plain_and_under_two_keys_are_one_file(
    store_of: MakeStore, sessions_of: MakeSessions
) -> None:
    file_id = keep(sessions_of(PLAIN), [RAW[:100]], store_of(PLAIN))
    for sealer, piece in ((OLD, RAW[100:200]), (NEW, RAW[200:])):
        with sessions_of(sealer).begin() as session:
            file = session.get_one(File, file_id)
            files.append(session, file, [piece], store_of(sealer))
    for sealer in (NEW, OPENS):
        assert read(sessions_of(sealer), file_id, store_of(sealer), offset=50) == RAW[50:]
    with pytest.raises(ContentUnreadableError):
        read(sessions_of(STRANGER), file_id, store_of(STRANGER))


def test_a_part_in_the_place_of_another_is_noticed(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, NEW)
    one, other = store.put(b"one"), store.put(b"other")
    paths = [next(tmp_path.rglob(f"{each.key}.zst")) for each in (one, other)]
    paths[0].write_bytes(paths[1].read_bytes())
    assert store.get(other) == b"other"
    with pytest.raises(ContentUnreadableError):
        store.get(one)


@pytest.mark.parametrize("raw", [RAW, b"x"], ids=["long", "short"])
def test_a_part_is_sealed_anew_in_its_place(store_of: MakeStore, tmp_path: Path, raw: bytes) -> None:
    part = store_of(OLD).put(raw)
    if part.key is None:
        return  # its row is sealed by the column
    store_of(NEW).reseal(part.key)
    assert key_name(store_of(NEW).head(part.key)) == name_of(KEYS[0]).hex()
    assert store_of(NEW).get(part) == raw
    with pytest.raises(ContentUnreadableError):
        store_of(OLD).get(part)
    store_of(OPENS).reseal(part.key)
    assert store_of(PLAIN).get(part) == raw
    assert key_name(store_of(PLAIN).head(part.key)) is None
    store_of(PLAIN).drop([part.key])
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]


def test_what_an_interrupted_resealing_left_goes_with_the_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path, NEW)
    part = store.put(RAW)
    assert part.key is not None

    def killed(_path: Path, _to: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            store.reseal(part.key)
    assert len([each for each in tmp_path.rglob("*") if each.is_file()]) == 2
    assert store.get(part) == RAW
    store.drop([part.key])
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]


def test_two_processes_do_not_write_one_part_at_once(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, NEW)
    part = store.put(RAW)
    assert part.key is not None
    with next(tmp_path.rglob(f"{part.key}.zst")).with_suffix(".new").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b"half of it")
        with pytest.raises(UnavailableError):
            store.reseal(part.key)
    assert store.get(part) == RAW
    store.reseal(part.key)
    assert store.get(part) == RAW
    assert len([each for each in tmp_path.rglob("*") if each.is_file()]) == 1


def test_a_part_that_no_key_opens_fails_its_batch_alone(
    sessions: sessionmaker[Session], tmp_path: Path
) -> None:
    service = Service(sessions, tools(DirectoryStore(tmp_path, NEW)))
    refused = service.create(lines(1))
    with service.sessions() as session:
        file_id = service.batch(refused).input_file_id
        keys = files.part_keys(session, file_id)
    (path,) = (next(tmp_path.rglob(f"{key}.zst")) for key in keys)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert validate_next(sessions, service.tools)
    good = service.accepted(lines(2))
    service.complete()
    service.settle()
    assert [error["code"] for error in service.batch(refused).errors or []] == ["content_unreadable"]
    assert service.outcome(good) == (["line-0", "line-1"], [])


def test_a_file_that_no_key_opens_is_an_error_and_the_others_are_sent(
    serve: Serve, sessions_of: MakeSessions
) -> None:
    with serve(**VARIABLES) as process, process.client() as http:
        ids_of = []
        for number in range(2):
            file = {"file": ("b.jsonl", RAW[number:])}
            ids_of.append(http.post("/v1/files", files=file, data={"purpose": "batch"}).json()["id"])
        with sessions_of(STRANGER).begin() as session:
            lost = FilePart.file_id == ids.parse_file_id(ids_of[0])
            session.execute(update(FilePart).where(lost).values(content=b"sealed by another"))
        answer = http.get(f"/v1/files/{ids_of[0]}/content")
        assert (answer.status_code, error_of(answer)["code"]) == (500, "content_unreadable")
        assert http.get(f"/v1/files/{ids_of[1]}/content").content == RAW[1:]
        assert http.get(f"/v1/files/{ids_of[0]}").json()["bytes"] == len(RAW)


def test_a_document_is_sealed_until_its_text_is(sessions_of: MakeSessions, tokenizer: Tokenizer) -> None:
    sealing, other = sessions_of(NEW), sessions_of(STRANGER)
    with other.begin() as session:
        lost, _ = upload(session, b"It says voluminous things.")
    with sealing.begin() as session:
        found, _ = upload(session, f"It says {WORD} things.".encode())
    Extractor(sealing, tokenizer).run_once()
    with sealing() as session:
        document = session.get_one(Document, lost.id)
        assert (document.state, (document.error or {})["code"]) == ("failed", "content_unreadable")
        assert documents.load_text(session, found.id) == f"It says {WORD} things."
    assert not stores.in_database(sessions_of(PLAIN), Marks([WORD, "voluminous"]))


@pytest.mark.parametrize(("sealer", "is_again"), [(STRANGER, True), (OLD, False), (PLAIN, False)])
def test_a_document_whose_text_no_key_opens_is_read_again_when_it_comes_again(
    sessions_of: MakeSessions, tokenizer: Tokenizer, sealer: ContentSealer, *, is_again: bool
) -> None:
    content = f"It says {WORD} things twice.".encode()
    before, ours = sessions_of(sealer), sessions_of(NEW)
    with before.begin() as session:
        document, _ = upload(session, content)
    Extractor(before, tokenizer).run_once()
    with ours.begin() as session:
        again, must_be_extracted = upload(session, content)
    assert (again.id, must_be_extracted) == (document.id, is_again)
    Extractor(ours, tokenizer).run_once()
    with ours() as session:
        assert session.get_one(Document, document.id).state == "ready"
        assert documents.load_text(session, document.id) == content.decode()


def test_titles_are_found_by_their_words_however_they_are_stored(
    sessions_of: MakeSessions, tokenizer: Tokenizer
) -> None:
    titled = {}
    for name, sealer in (("plain", PLAIN), ("old", OLD), ("new", NEW), ("lost", STRANGER)):
        sealing = sessions_of(sealer)
        with sealing.begin() as session:
            document, _ = upload(session, name.encode())
        Extractor(sealing, tokenizer).run_once()
        with sealing.begin() as session:
            session.get_one(Document, document.id).title = f"The {WORD} {name}"
        titled[name] = document.id
    with sessions_of(NEW)() as session:

        def names(part: str) -> set[str | None]:
            wanted = SearchRange(DEFAULT_TENANT, None, limit=10, window=100)
            found = search_documents(session, DocumentFilter(name=part), wanted)
            return {each.title for each in found.items}

        assert names("PERSPIC") == {f"The {WORD} {name}" for name in ("plain", "old", "new")}
        assert names("new") == {f"The {WORD} new"}
        assert names("sealed") == set(), "what is stored is not what is searched"
        assert session.get_one(Document, titled["lost"]).title is None
