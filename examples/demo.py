"""A tour of the engine on an embedded Postgres: submit a thousand executions, read, hold, run and cancel some of them.

Run it with `make demo`, as often as you like: the data stays under ./.flowfabric and grows by a thousand each time.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from uuid import uuid4

from flowfabric.config import Config
from flowfabric.engine import attempts, claims, executions, holds, lanes
from flowfabric.errors import Conflict, Fenced, FlowFabricError
from flowfabric.ids import ExecutionId
from flowfabric.model import Completion, Options, Page, PublicState, Submission, SubmitOutcome, Submitted, Summary
from flowfabric.postgres import embedded
from flowfabric.postgres.database import Database
from flowfabric.postgres.driver import Connection
from flowfabric.schema import migrate

COUNT = 1_000
DESK = Options(task="summary", lane="desk", policy={"retry": {"max_retries": 3}})
MAIL = Options(task="newsletter", lane="mail", creator="demo")
DRAW = Options(task="picture", lane="pictures", needs=["gpu"])


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    config = Config.read(url=None)  # ignores FLOWFABRIC_URL: the demo does not touch your database
    with step(f"Postgres is running, with its data under {config.data}/"):
        server = embedded.start(config.data)
    with server:
        asyncio.run(tell(config, server.url()))
    print(f"\nThe data stays in {config.data}/ and grows with every run. Next: docs/quickstart.md.")


async def tell(config: Config, url: str) -> None:
    """Run the whole tour on one connection."""
    async with Database(config, url) as database, database.connection() as conn:
        with step("the schema is migrated to this version"):
            await migrate.migrate(conn, config)
        await tidy(conn)
        taken = await submit(conn)
        await submit_again(conn)
        await look(conn, taken)
        await hold_back(conn, taken[1])
        await pause(conn)
        await explain(conn, taken)
        await work(conn)
        await cancel(conn, taken[3])
        await count(conn)


async def tidy(conn: Connection) -> None:
    """Resume the lane that an interrupted run may have left paused."""
    await lanes.configure_lane(conn, DESK.lane)
    await lanes.resume_lane(conn, DESK.lane, by="demo")


async def submit(conn: Connection) -> list[ExecutionId]:
    chapter(f"{COUNT:,} submissions")
    with step(f"{COUNT:,} executions submitted in one statement, in three lanes"):
        answers = await executions.submit_many(conn, list(submissions()))
    return [answer.execution_id for answer in accepted(answers)]


def submissions() -> Iterator[Submission]:
    """Reports, some of them urgent; newsletters, delayed until tomorrow; pictures, which need a GPU."""
    for number in range(COUNT):
        payload = b'{"number": %d}' % number
        match number % 10:
            case 1 | 2:
                yield Submission(options=MAIL, payload=payload, delay=timedelta(days=1))
            case 3:
                yield Submission(options=DRAW, payload=payload, tags={"demo.size": "large"})
            case 4:
                yield Submission(options=DESK, payload=payload, priority=100, tags={"demo.customer": "acme"})
            case _:
                yield Submission(options=DESK, payload=payload)


async def submit_again(conn: Connection) -> None:
    """An idempotency key makes a submission safe to repeat."""
    once = Submission(options=DESK, payload=b'{"topic": "tides"}', key="tides")
    with step("the idempotency key 'tides' submitted five times"):
        answers = accepted(await executions.submit_many(conn, [once] * 5))
    created = sum(answer.outcome is SubmitOutcome.CREATED for answer in answers)
    told(f"{created} created, {len(answers) - created} duplicates, all with the id {answers[0].execution_id}")


async def look(conn: Connection, taken: Sequence[ExecutionId]) -> None:
    chapter("Reading")
    with step("the fifth execution described"):
        found = await executions.describe(conn, taken[4], payload=True)
    told(f"{found.task} {found.payload!r} in lane {found.lane}, priority {found.priority}, tags {dict(found.tags)}")
    told(f"{found.state.public_state}: {found.explanation.sentence}")
    with step("a hundred executions of customer acme listed by tag"):
        page = await executions.list_executions(conn, tag=("demo.customer", "acme"), limit=100)
    told(f"{len(page.items)} found, the newest is {page.items[0].execution_id}")
    with step("the delayed executions of lane mail listed page by page"):
        sizes = [len(page.items) async for page in pages(conn, lane="mail", state=PublicState.DELAYED, most=4)]
    told(f"{sum(sizes)} on {len(sizes)} pages")


async def pages(conn: Connection, *, lane: str, state: PublicState, most: int) -> AsyncIterator[Page[Summary]]:
    """Yield the first pages of a list."""
    cursor: str | None = None
    for _ in range(most):
        page = await executions.list_executions(conn, lane=lane, states=[state], cursor=cursor)
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return


async def hold_back(conn: Connection, execution_id: ExecutionId) -> None:
    chapter("Operating")
    with step("one execution held, then released"):
        await holds.hold(conn, execution_id, by="demo", reason="the customer called")
        held = await executions.explain(conn, execution_id)
        let_go = await holds.unhold(conn, execution_id, by="demo")
    told(f"held:     {held.sentence}")
    told(f"released: {let_go.public_state}")


async def pause(conn: Connection) -> None:
    with step("lane desk paused: one row written, however many executions wait"):
        await lanes.pause_lane(conn, "desk", by="demo", reason="the model is down")


async def explain(conn: Connection, taken: Sequence[ExecutionId]) -> None:
    chapter("Why does it wait?")
    for what, execution_id in {"paused": taken[0], "delayed": taken[1], "blocked": taken[3]}.items():
        told(f"{what + ':':9}{(await executions.explain(conn, execution_id)).sentence}")
    await lanes.resume_lane(conn, "desk", by="demo")
    told(f"{'resumed:':9}{(await executions.explain(conn, taken[0])).sentence}")


async def work(conn: Connection) -> None:
    """Do by hand what a worker does."""
    chapter("Working")
    with step("100 executions claimed under leases of 30 s, the urgent ones first"):
        claimed = await claims.claim(conn, "demo", instance=uuid4().hex, lanes=["desk"], take=100)
    first, *others = claimed
    told(f"the first:  {(await executions.explain(conn, first.execution_id)).sentence}")
    with step("99 executions completed in one statement"):
        await attempts.complete_many(conn, [Completion(fence=claim.fence, result=b'"done"') for claim in others])
    told(f"the second: {(await executions.explain(conn, others[0].execution_id)).sentence}")
    with step("the first execution failed, with a retry left"):
        await attempts.fail(conn, first.fence, "the model timed out", retry_after=timedelta(days=1))
    told(f"the first:  {(await executions.explain(conn, first.execution_id)).sentence}")
    try:
        await attempts.complete(conn, first.fence, b'"too late"')
    except Fenced as refused:
        told(f"to complete it now is refused: {refused}")


async def cancel(conn: Connection, execution_id: ExecutionId) -> None:
    chapter("Cancelling")
    with step("one execution cancelled"):
        await executions.cancel(conn, execution_id, reason="no GPU in sight", by="demo")
    told((await executions.explain(conn, execution_id)).sentence)
    try:
        await holds.hold(conn, execution_id, by="demo")
    except Conflict as refused:
        told(f"to hold it now is refused: {refused}")
    page = await executions.list_executions(conn, states=[PublicState.CANCELLED])
    told(f"the latest in the list of cancelled: {page.items[0].execution_id}")


async def count(conn: Connection) -> None:
    chapter("What is there now")
    for lane in (await lanes.list_lanes(conn)).items:
        told(f"{lane.name:10}{lane.state:8}{lane.waiting_count:7,} waiting{lane.delayed_count:7,} delayed")


def accepted(answers: Sequence[Submitted | FlowFabricError]) -> list[Submitted]:
    """The accepted submissions; the demo submits nothing that could be refused."""
    taken = [answer for answer in answers if isinstance(answer, Submitted)]
    assert len(taken) == len(answers), answers
    return taken


def chapter(title: str) -> None:
    print(f"\n{title}")


def told(line: str) -> None:
    print(f"            {line}")


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print what was done and how long it took."""
    start = time.perf_counter()
    yield
    print(f"{(time.perf_counter() - start) * 1_000:8.1f} ms {what}")


if __name__ == "__main__":
    main()
