"""The drivers people use, opened on the database of a test in the same way."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import django
import django.db
import psycopg
import sqlalchemy
from django.conf import settings
from django.db import transaction
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.orm import Session, scoped_session, sessionmaker


class Opened(NamedTuple):
    """A connection or session of a driver, and what a test does with it."""

    conn: Any
    commit: Any
    rollback: Any
    savepoint: Any
    """Opens a savepoint that is rolled back if its block raises."""

    def execute(self, statement: str) -> None:
        if isinstance(self.conn, psycopg.Connection):
            with self.conn.cursor() as cursor:
                cursor.execute(statement.encode())
        elif hasattr(self.conn, "in_atomic_block"):
            with self.conn.cursor() as cursor:
                cursor.execute(statement)
        else:
            self.conn.execute(sqlalchemy.text(statement))


@contextmanager
def of_psycopg(url: str, **options: Any) -> Iterator[Opened]:
    with psycopg.connect(url, **options) as conn:
        yield Opened(conn, conn.commit, conn.rollback, conn.transaction)


def of_psycopg_without_prepared_statements(url: str) -> AbstractContextManager[Opened]:
    return of_psycopg(url, prepare_threshold=None)


def of_psycopg_with_raw_cursors(url: str) -> AbstractContextManager[Opened]:
    return of_psycopg(url, cursor_factory=psycopg.RawCursor)


def of_psycopg_with_dict_rows(url: str) -> AbstractContextManager[Opened]:
    return of_psycopg(url, row_factory=psycopg.rows.dict_row)


@contextmanager
def _engine(url: str, **options: Any) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), **options)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def of_session(url: str) -> Iterator[Opened]:
    with _engine(url) as engine, Session(engine) as session:
        yield Opened(session, session.commit, session.rollback, session.begin_nested)


@contextmanager
def of_scoped_session(url: str) -> Iterator[Opened]:
    with _engine(url) as engine:
        session = scoped_session(sessionmaker(engine))
        try:
            yield Opened(session, session.commit, session.rollback, session.begin_nested)
        finally:
            session.remove()


@contextmanager
def of_sqlalchemy_connection(url: str) -> Iterator[Opened]:
    with _engine(url) as engine, engine.connect() as conn:
        yield Opened(conn, conn.commit, conn.rollback, conn.begin_nested)


@contextmanager
def of_django(url: str) -> Iterator[Opened]:
    with django_connection(url) as conn:
        block = transaction.atomic()
        block.__enter__()
        ended = False

        def end(error: BaseException | None) -> None:
            nonlocal ended
            ended = True
            block.__exit__(type(error) if error else None, error, None)

        try:
            yield Opened(conn, lambda: end(None), lambda: end(ZeroDivisionError()), transaction.atomic)
        finally:
            if not ended:
                end(ZeroDivisionError())


@contextmanager
def django_connection(url: str) -> Iterator[Any]:
    """Django's own connection of this thread, to the database of a test."""
    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}}, USE_TZ=True)
        django.setup()
    given = conninfo_to_dict(url)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    django.db.connections.databases["default"].update({name: given.get(each, "") for name, each in names.items()})
    try:
        yield django.db.connection
    finally:
        django.db.connection.close()
        del django.db.connections["default"]


SYNC = {
    "psycopg": of_psycopg,
    "psycopg, nothing prepared": of_psycopg_without_prepared_statements,
    "psycopg, raw cursors": of_psycopg_with_raw_cursors,
    "psycopg, rows as mappings": of_psycopg_with_dict_rows,
    "SQLAlchemy session": of_session,
    "SQLAlchemy scoped session": of_scoped_session,
    "SQLAlchemy connection": of_sqlalchemy_connection,
    "Django": of_django,
}
