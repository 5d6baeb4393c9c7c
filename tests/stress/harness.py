"""Random stress: many actors on one database at once, and invariants that must hold at every moment.

`FLOWFABRIC_STRESS_SEED=7 pytest tests/stress` repeats the choices of a run; a failing run prints its seed.
"""

import asyncio
import functools
import importlib
import os
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from flowfabric import engine, errors
from flowfabric.config import Config
from flowfabric.engine import events
from flowfabric.ids import ExecutionId, FlowId
from flowfabric.model import Claim, EventPage, Grant, SignalToSend
from flowfabric.postgres import driver
from flowfabric.sweeps import sweeps
from tests.conftest import SOAK
from tests.engine.events.log import write_directly
from tests.stress import invariants

T = TypeVar("T")

SECONDS, ROUND, ACTORS = (60, 5, 16) if SOAK else (2, 1, 8)
GIVEN_SEED = os.environ.get("FLOWFABRIC_STRESS_SEED")
RECENT = 20  # few targets, so that actors meet
SWEEPS = {sweep.name: sweep for sweep in sweeps(Config())}
CLOSED_WITHIN = 5.0


class Watched(asyncpg.Connection):  # type: ignore[misc]
    """A connection on which a deadlock is a failure; our driver would repeat the call."""

    async def fetch(self, query: str, *args: object, **options: Any) -> Any:
        try:
            return await super().fetch(query, *args, **options)
        except asyncpg.DeadlockDetectedError as error:
            raise AssertionError(f"deadlock in {query}: {error.detail}\n{error.context}") from error


class World:
    """What the actors of one stress know of: everything they have created, and what the log has told so far."""

    def __init__(self) -> None:
        self.executions: list[ExecutionId] = []
        self.flows: list[FlowId] = []
        self.members: dict[FlowId, list[ExecutionId]] = {}
        self.claims: list[Claim] = []
        self.grants: list[tuple[Grant, str, str]] = []
        self.tokens: list[SignalToSend] = []
        self.accepted: list[tuple[ExecutionId, Any]] = []
        self.reservations: list[tuple[Any, Claim | None]] = []
        self.cursor = events.OLDEST
        self.reading = asyncio.Lock()
        self.read: list[int] = []
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()


class Actor:
    """One session that does one random act after the other."""

    def __init__(self, stress: "Stress", number: int, conn: asyncpg.Connection) -> None:
        self.stress, self.world, self.number, self.conn = stress, stress.world, number, conn
        self.dice = random.Random(f"{stress.seed}/{number}")
        self.doing = "nothing"
        self.worker, self.instance = f"worker-{number % 3}", f"worker-{number % 3}-{number}"

    async def run(self, acts: Mapping["Act", int]) -> None:
        """Act until the round is over, on a new connection whenever somebody has killed this one."""
        while self.stress.is_running():
            [act] = self.dice.choices(list(acts), list(acts.values()))
            self.doing = f"{self.conn.get_server_pid()} {act.__name__}"
            try:
                await act(self)
            except (errors.Unavailable, *driver.DRIVER):
                if not await driver.closed(self.conn, CLOSED_WITHIN):
                    raise
                self.conn = await self.stress.connect()

    async def call(self, operation: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T | None:
        """Call an operation and return its answer, or `None` if it refused for a reason that its docstring names."""
        name = operation.__name__
        try:
            if self.conn.is_in_transaction():
                async with self.conn.transaction():
                    answer = await operation(self.conn, *args, **options)
            else:
                answer = await operation(self.conn, *args, **options)
        except documented(operation) as refused:
            self.world.refused[f"{name} {refused.code}"] += 1
            return None
        self.world.done[name] += 1
        return answer

    async def call_many(
        self,
        single: Callable[..., Awaitable[Any]],
        many: Callable[..., Awaitable[list[Any]]],
        *args: Any,
        **options: Any,
    ) -> list[Any]:
        """Call an operation for many items and return the answers; it may refuse items as `single` documents."""
        try:
            answers = await many(self.conn, *args, **options)
        except errors.RowLocked:
            assert options.get("wait") is False
            return []  # as a whole, because of a row that belongs to no single item
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, documented(single)):
                raise answer
            self.world.done[many.__name__] += not isinstance(answer, Exception)
        return [answer for answer in answers if not isinstance(answer, Exception)]

    def some_of(self, things: list[T], most: int = 8) -> list[T]:
        """Some of the latest, in any order, and sometimes one of them twice."""
        recent = things[-RECENT:]
        chosen = self.dice.sample(recent, min(len(recent), self.dice.randint(1, most)))
        return chosen + chosen[:1] * self.chance(0.1)

    def one_of(self, things: list[T]) -> T | None:
        """A random one of the latest, if there are any."""
        return self.dice.choice(things[-RECENT:]) if things else None

    def chance(self, share: float) -> bool:
        return self.dice.random() < share

    @asynccontextmanager
    async def open_transaction(self) -> AsyncIterator[None]:
        """A transaction of the caller that stays open for a few round trips, and is sometimes rolled back."""
        transaction = self.conn.transaction()
        await transaction.start()
        try:
            yield
            for _ in range(self.dice.randint(0, 15)):
                await self.conn.execute("select")
        except BaseException:
            if not self.conn.is_closed():
                await transaction.rollback()
            raise
        await (transaction.rollback() if self.chance(0.25) else transaction.commit())


@functools.cache
def documented(operation: Callable[..., Any]) -> tuple[type[errors.FlowFabricError], ...]:
    """The errors that an operation raises by its docstring, also by reference: "what `submit` raises"."""
    text = " ".join((operation.__doc__ or "").split())
    named = [getattr(errors, word, None) for word in re.findall(r"`([A-Z]\w+)`", text)]
    found = [kind for kind in named if isinstance(kind, type) and issubclass(kind, errors.FlowFabricError)]
    found.append(errors.RowLocked)  # an execution joined a locked flow after the call had looked for flows to lock
    for referred in re.findall(r"(?:what|same errors as) ((?:`\w+`(?:, | and )?)+)", text):
        for name in re.findall(r"`(\w+)`", referred):
            [other] = {vars(concept)[name] for concept in CONCEPTS if callable(vars(concept).get(name))}
            found += documented(other)
    return tuple(found)


CONCEPTS = [importlib.import_module(f"flowfabric.engine.{name}") for name in engine.__all__]
Act = Callable[[Actor], Coroutine[Any, Any, None]]


class Stress:
    """A stress of one database: rounds of random acts, with all invariants checked after each."""

    def __init__(self, url: str, *, share_of_quotas: float) -> None:
        self.url, self.share_of_quotas = url, share_of_quotas
        self.seed = int(GIVEN_SEED) if GIVEN_SEED else random.SystemRandom().randrange(10**6) if SOAK else 1
        self.world = World()
        self.actors: list[Actor] = []
        self.ends_at = 0.0

    async def connect(self) -> asyncpg.Connection:
        """Open a session, which may be one of our own pool, in which events get their ids as they are written."""
        conn = await asyncpg.connect(
            self.url, connection_class=Watched, server_settings={"statement_timeout": "20s", "jit": "off"}
        )
        if random.Random(f"{self.seed}/{conn.get_server_pid()}").random() < 0.5:
            await write_directly(conn)
        return conn

    def is_running(self) -> bool:
        return asyncio.get_running_loop().time() < self.ends_at

    async def run(self, acts: Mapping[Act, int]) -> None:
        """Let the actors act for as long as the test lasts; the checks after each round find no fault."""
        for _ in range(SECONDS // ROUND):
            self.ends_at = asyncio.get_running_loop().time() + ROUND
            try:
                async with asyncio.TaskGroup() as group:
                    for actor in self.actors:
                        group.create_task(actor.run(acts))
            except ExceptionGroup as failed:
                raise failed.exceptions[0] from None
            await self.check()

    async def check(self) -> None:
        """Check all invariants."""
        for check in [*invariants.STATE, *invariants.HISTORY]:
            await invariants.hold(self.actors[0].conn, check)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the sessions of the actors; at the end close them, after which Postgres has counted every deadlock."""
        self.actors = [Actor(self, number, await self.connect()) for number in range(ACTORS)]
        print(f"FLOWFABRIC_STRESS_SEED={self.seed}")
        try:
            yield
        finally:
            print("doing", [actor.doing for actor in self.actors])
            print("done", dict(sorted(self.world.done.items())))
            print("refused", dict(sorted(self.world.refused.items())))
            for actor in self.actors:
                await actor.conn.close(timeout=5)
        conn = await asyncpg.connect(self.url)
        deadlocks = await conn.fetchval("select deadlocks from pg_stat_database where datname = current_database()")
        await conn.close()
        assert deadlocks == 0

    async def read_log(self, actor: Actor) -> EventPage:
        """Read the next page of the log, as one subscriber that changes sessions."""
        async with self.world.reading:
            page = await events.read_events(actor.conn, self.world.cursor, limit=1_000)
            self.world.cursor = page.cursor
            self.world.read += [event.event_id for event in page.events]
        return page
