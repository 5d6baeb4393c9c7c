"""Doctor: the facts it collects from Postgres and the engine, and its findings."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from flowfabric.model.overview import Stuck


class Level(StrEnum):
    """How much a finding matters."""

    WRONG = "wrong"
    ADVICE = "advice"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding of a check: the problem, with the value; what it means; what to do."""

    check: str
    level: Level
    subject: str | None = None
    value: str
    problem: str
    means: str
    remedy: str


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The checks that ran, and their findings; the wrong ones come first."""

    checks: Sequence[str]
    findings: Sequence[Finding]

    @property
    def wrong_count(self) -> int:
        return sum(finding.level is Level.WRONG for finding in self.findings)


class OpenTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that another session has open in this database."""

    pid: int
    role: str | None
    application: str | None
    state: str
    began_at: datetime
    pins: bool
    writes_events: bool


class PreparedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction prepared for two-phase commit, which belongs to no session."""

    gid: str
    role: str
    prepared_at: datetime


class TableFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The vacuum statistics of a table."""

    name: str
    dead_count: int
    live_count: int
    vacuumed_at: datetime | None
    is_left_out: bool


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the Postgres server, from system catalogs only."""

    version_num: int
    version: str
    at: datetime
    pid: int
    is_standby: bool
    sees_all: bool
    connection_count: int
    settings: Mapping[str, str]
    transactions: Sequence[OpenTransaction]
    prepared: Sequence[PreparedTransaction]
    slots: Sequence[str]
    tables: Sequence[TableFacts]
    has_test_clock: bool


class Overdue(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest row that a sweep should have handled by now, and how late is still normal."""

    sweep: str
    since: datetime
    late_s: float
    allowed_s: float


class ConsumerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A named consumer of the log, and how far it is behind."""

    name: str
    behind_count: int
    acknowledged_at: datetime
    is_cut_off: bool


class LargeStream(msgspec.Struct, frozen=True, kw_only=True):
    """A running execution whose streams keep many bytes."""

    execution_id: str
    lane: str
    attempts: int
    frames: int
    bytes: int


class WorkFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the engine and its work."""

    at: datetime
    pid: int
    clock_offset_s: float
    has_key: bool | None
    log_room: int
    unread_count: int
    overdue: Sequence[Overdue]
    removing_since: datetime | None
    stuck: Sequence[Stuck]
    consumers: Sequence[ConsumerFacts]
    frames_bytes: int
    database_bytes: int
    large_streams: Sequence[LargeStream]
