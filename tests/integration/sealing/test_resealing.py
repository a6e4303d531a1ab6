"""Resealing: every value ends under the newest key, whatever happens beside it, and reads as before."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, LargeBinary, event, select, text, update
from sqlalchemy.orm import Session, sessionmaker

from bucket_support import serving_bucket
from jobs import files
from jobs.errors import UnavailableError
from jobs.files.object_storage import ObjectStore
from jobs.files.storage import DirectoryStore, RowStore, StoredPart
from jobs.models import (
    DEFAULT_TENANT,
    Base,
    Document,
    DocumentText,
    File,
    FilePart,
    WebhookEndpoint,
    WebhookSecret,
)
from jobs.models.webhook_delivery import WebhookDispatch
from jobs.resealing import passes
from jobs.resealing.parts import PARTS
from jobs.resealing.places import SECRETS, Aim, sealed_tables
from jobs.resealing.tally import PLAIN as UNDER_NONE
from jobs.resealing.tally import Tally
from jobs.sealing.content import PLAIN, ContentSealer
from jobs.settings import DatabaseSettings
from jobs.states.file import FileState
from jobs.webhooks.vault import Vault
from owned.everything import fill
from sealed.keys import LOST_NAME, NEW, NEW_KEY, NEW_NAME, OLD, OLD_KEY, OLD_NAME, OPENS, STRANGER, sealing
from searching import stores
from searching.stores import Marks

MARK = "sesquipedalian"
Sessions = sessionmaker[Session]


def aim_of(sealer: ContentSealer) -> Aim:
    keys = {OLD: [OLD_KEY]}.get(sealer, [NEW_KEY, OLD_KEY])
    return Aim(sealer, Vault(keys), {OLD: [OLD_NAME]}.get(sealer, [NEW_NAME, OLD_NAME]))


class DiedError(BaseException):
    """The command was killed here."""


class Site:
    """A tenant with everything: its content is plain, its secrets are under the old key."""

    def __init__(self, settings: DatabaseSettings, sessions: Sessions, folder: Path) -> None:
        self.settings = settings
        self.sessions = sessions
        self.folder = folder
        vault = Vault([OLD_KEY])
        with sessions.begin() as session:
            fill(session, DEFAULT_TENANT, MARK, DirectoryStore(folder, PLAIN))
            file = session.scalars(select(File)).first()
            assert file is not None
            for start, store in ((1000, DirectoryStore(folder, PLAIN)), (2000, RowStore())):
                part = store.put(MARK.encode() * 100)
                files.add_part(session, file.id, part, start=start, tenant_id=DEFAULT_TENANT)
            for table in (WebhookEndpoint, WebhookSecret, WebhookDispatch):
                session.execute(update(table).values(secret=vault.seal("whsec_x")))

    def reseal(self, sealer: ContentSealer, *, counts: bool = False) -> Tally:
        do = passes.count if counts else passes.reseal
        return do(self.sessions, DirectoryStore(self.folder, sealer), aim_of(sealer), tell=lambda *_: None)

    def read(self, sealer: ContentSealer) -> dict[str, Any]:
        """All content as its readers see it: by column, and by part."""
        found: dict[str, Any] = {}
        store = DirectoryStore(self.folder, sealer)
        with sealing(self.settings, sealer) as opening, opening() as session:
            for each in sealed_tables():
                of = Base.metadata.tables[each.name]
                names = [one.name for one in each.places if one.content is not None]
                if names:
                    query = select(*(of.c[name] for name in (*each.key, *names)))
                    found[each.name] = sorted(map(str, session.execute(query)))
            parts = session.scalars(select(FilePart).where(FilePart.key.is_not(None)))
            found["parts"] = sorted(store.get(StoredPart(each.num_bytes, key=each.key)) for each in parts)
            secrets = session.scalars(select(WebhookEndpoint.secret)).all()
        found["secrets"] = [Vault([NEW_KEY, OLD_KEY]).open(each) for each in secrets]
        return found


@pytest.fixture
def site(database_settings: DatabaseSettings, sessions: Sessions, tmp_path: Path) -> Site:
    return Site(database_settings, sessions, tmp_path)


def test_everything_is_sealed_then_under_a_new_key_then_plain_again(site: Site) -> None:
    before = site.read(OPENS)
    counted = site.reseal(OLD, counts=True)
    assert set(counted.values) >= {"file_parts", "document_texts", "documents", PARTS, *_of_secrets()}
    assert counted.num_left == counted.by_key()[UNDER_NONE] > 0
    assert site.read(OPENS) == before, "a count changes nothing"
    num_values = sum(counted.by_key().values())
    for sealer, name in ((OLD, OLD_NAME), (NEW, NEW_NAME)):
        tally = site.reseal(sealer)
        assert (tally.by_key(), tally.num_left, tally.unreadable) == ({name: num_values}, 0, [])
        assert tally.num_resealed > 0
        assert site.reseal(sealer).num_resealed == 0, "there is nothing left to do"
        assert site.read(sealer) == before
    opened = site.reseal(OPENS)
    num_secrets = opened.by_key()[NEW_NAME]
    assert opened.by_key() == {UNDER_NONE: num_values - num_secrets, NEW_NAME: num_secrets}
    assert num_secrets == sum(counted.values[table][OLD_NAME] for table in _of_secrets())
    assert site.read(OPENS) == before


def _of_secrets() -> set[str]:
    return {"webhook_endpoints", "webhook_secrets", "webhook_dispatches"} & set(SECRETS)


def test_a_secret_column_that_the_models_gain_is_in_the_list() -> None:
    sealed = {
        (table.name, column.name)
        for table in Base.metadata.sorted_tables
        for column in table.columns
        if "secret" in column.name and "sha256" not in column.name and isinstance(column.type, LargeBinary)
    }
    assert sealed == {(table, name) for table, names in SECRETS.items() for name in names}


def test_it_may_die_after_any_statement_and_begin_again(site: Site, engine: Engine) -> None:
    before = site.read(OPENS)
    num_deaths = 0
    for num_statements in range(0, 1000, 3):
        left = num_statements

        def count(*_: Any) -> None:  # noqa: ANN401
            nonlocal left
            left -= 1
            if left < 0:
                raise DiedError

        event.listen(engine, "before_cursor_execute", count)
        try:
            site.reseal(OLD)
        except DiedError:
            num_deaths += 1
        else:
            break
        finally:
            event.remove(engine, "before_cursor_execute", count)
    assert num_deaths > 5
    assert set(site.reseal(OLD).by_key()) == {OLD_NAME}
    assert site.read(OLD) == before


def test_a_row_that_another_transaction_holds_is_left_for_the_next_pass(site: Site) -> None:
    with site.sessions.begin() as session:
        session.execute(select(Document.id).with_for_update())
        session.execute(select(File.id).with_for_update())
        tally = site.reseal(OLD)
        assert tally.values["documents"] == {UNDER_NONE: 3}, "title, warnings and attachments"
        assert (tally.num_left, tally.values[PARTS][UNDER_NONE]) == (5, 2)
        assert set(tally.values["document_texts"]) == {OLD_NAME}, "others do not wait for it"
    assert site.reseal(OLD).num_left == 0


def test_a_value_that_no_key_opens_is_named_and_stops_nothing(site: Site) -> None:
    site.reseal(OLD)
    with sealing(site.settings, STRANGER) as strange, strange.begin() as session:
        (document_id,) = session.execute(
            update(DocumentText).values(body=b"lost").returning(DocumentText.document_id)
        ).scalars()
    with site.sessions.begin() as session:  # bytes of the disk that changed
        session.execute(text("UPDATE file_parts SET content = content || 'x' WHERE content IS NOT NULL"))
        key, *_ = session.scalars(select(FilePart.key).where(FilePart.key.is_not(None)))
    DirectoryStore(site.folder).drop([str(key)])
    counted = site.reseal(NEW, counts=True)
    assert {(each.table, each.key) for each in counted.unreadable} == {
        ("document_texts", LOST_NAME),
        (PARTS, None),
    }
    tally = site.reseal(NEW)
    found = {(each.table, each.column, each.key) for each in tally.unreadable}
    assert found == {
        ("document_texts", "body", LOST_NAME),
        ("file_parts", "content", None),
        (PARTS, "key", None),
    }
    assert str(document_id) in [each.row for each in tally.unreadable]
    assert tally.num_unreadable == 3
    assert tally.values["documents"] == {NEW_NAME: 3}
    assert tally.by_key()[OLD_NAME] == 1, "of what could not be opened"


def test_parts_in_a_bucket_are_sealed_anew_where_it_answers(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_bucket() as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)

        def store_of(sealer: ContentSealer) -> ObjectStore:
            return ObjectStore("s3://bucket/some/prefix", sealer)

        with sessions.begin() as session:
            file = files.create(
                session, tenant_id=DEFAULT_TENANT, purpose=files.OUTPUT, filename="", state=FileState.GROWING
            )
            for _ in range(3):
                files.append(session, file, [MARK.encode() * 10], store_of(PLAIN))
        for sealer, name in ((OLD, OLD_NAME), (NEW, NEW_NAME)):
            tally = passes.reseal(sessions, store_of(sealer), aim_of(sealer), tell=lambda *_: None)
            assert (tally.values[PARTS], tally.num_left) == ({name: 3}, 0)
        assert not [each for each in bucket.objects.values() if MARK.encode() in each]
        with sessions() as session:
            read = files.read_chunks(session, file.id, store_of(NEW))
            assert b"".join(read) == MARK.encode() * 30
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody else")
        with pytest.raises(UnavailableError):
            passes.reseal(sessions, store_of(OPENS), aim_of(OPENS), tell=lambda *_: None)


def test_a_file_that_is_removed_meanwhile_does_not_come_back(site: Site) -> None:
    class Removing(DirectoryStore):
        """A store whose parts go between the look at one and its resealing."""

        def head(self, key: str) -> bytes:
            found = super().head(key)
            with site.sessions.begin() as session:
                for file_id in session.scalars(select(File.id).with_for_update()):
                    self.drop(files.part_keys(session, file_id))
                    session.delete(session.get_one(File, file_id))
            return found

    tally = passes.reseal(site.sessions, Removing(site.folder, OLD), aim_of(OLD), tell=lambda *_: None)
    assert not [each for each in site.folder.rglob("*") if each.is_file()]
    assert tally.unreadable == []


def test_what_an_interrupted_opening_wrote_is_gone_after_the_next_run(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.reseal(NEW)

    def killed(_path: Path, _to: Path) -> Path:
        raise DiedError

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(DiedError):
            site.reseal(OPENS)
    assert stores.in_files(site.folder, Marks([MARK])), "the plain form is beside a part"
    assert site.reseal(NEW).unreadable == []
    assert stores.in_files(site.folder, Marks([MARK])) == set()
