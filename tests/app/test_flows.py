"""Flows of an app: graphs of tasks that depend on each other."""

import msgspec
import pytest

from flowfabric import App, Context, ExecutionSkipped, Flow
from flowfabric.app.tasks import Task
from flowfabric.engine import executions, flows
from flowfabric.errors import InvalidBody, KeyConflict
from tests.app.scene import TIMEOUT, working
from tests.given import Given

MIB = 1_048_576


class Notes(msgspec.Struct):
    topic: str
    lines: int


def search(app: App) -> Task[[str], Notes]:
    @app.task
    async def search(topic: str) -> Notes:
        return Notes(topic, len(topic))

    task: Task[[str], Notes] = search
    return task


def write(app: App) -> Task[[Notes, str], str]:
    @app.task(lane="writers")
    async def write(notes: Notes, style: str = "plain") -> str:
        assert isinstance(notes, Notes)
        return f"{style} {notes.topic} {notes.lines}"

    task: Task[[Notes, str], str] = write
    return task


async def test_a_task_is_called_with_the_results_of_its_upstreams(app: App) -> None:
    find, tell = search(app), write(app)
    async with working(app):
        flow = app.flow("report")
        page = flow.add(tell, flow.add(find, "tides"), style="grave")
        handle = await flow.submit()

        assert await handle[page].result(timeout=TIMEOUT) == "grave tides 5"
        assert await handle.wait(timeout=TIMEOUT) == "completed"
        assert (await handle.describe()).edge_count == 1


async def test_the_result_of_an_upstream_named_with_after_is_not_passed(app: App) -> None:
    order: list[str] = []

    @app.task
    async def note(what: str) -> None:
        order.append(what)

    async with working(app, concurrency=4):
        flow = app.flow("report")
        first, second = flow.add(note, "first"), flow.add(note, "second")
        last = flow.add(note, "last").after(first, second)
        handle = await flow.submit()
        await handle[last].result(timeout=TIMEOUT)

    assert (sorted(order[:2]), order[2]) == (["first", "second"], "last")
    assert [node.name for node in (first, second, last)] == ["note", "note_2", "note_3"]


async def test_the_first_answer_is_enough(app: App) -> None:
    @app.task
    async def ask(model: str) -> str:
        return model

    @app.task
    async def answer(one: str = "", two: str = "") -> str:
        return one or two

    async with working(app, concurrency=4):
        flow = app.flow("race")
        slow = flow.add(ask.with_options(lane="nobody"), "slow")
        best = flow.add(answer, slow, flow.add(ask, "quick")).any_of()
        handle = await flow.submit()

        assert await handle[best].result(timeout=TIMEOUT) == "quick"
        assert await handle[slow].wait() == "cancelled"


@pytest.mark.parametrize("fed", [True, False])
async def test_a_task_is_called_with_results_that_do_not_fit_into_a_claim(database_url: str, fed: bool) -> None:
    app = App(url=database_url, payload_limit=20 * MIB)

    @app.task
    async def fill() -> dict[str, str]:
        return {"text": "x" * 17 * MIB}

    @app.task
    async def measure(text: str | dict[str, str]) -> int:
        return len(text if isinstance(text, str) else text["text"])

    async with working(app):
        flow = app.flow("report")
        node = flow.feed(measure, flow.add(fill)) if fed else flow.add(measure, flow.add(fill))
        assert await (await flow.submit())[node].result(timeout=TIMEOUT) == 17 * MIB


async def test_a_result_can_be_all_the_arguments(app: App) -> None:
    @app.task
    async def prepare() -> dict[str, object]:
        return {"notes": {"topic": "tides", "lines": 3}, "style": "light"}

    tell = write(app)
    async with working(app):
        flow = app.flow("report")
        page = flow.feed(tell, flow.add(prepare))
        assert await (await flow.submit())[page].result(timeout=TIMEOUT) == "light tides 3"


async def test_the_downstreams_of_a_failed_task_are_skipped(app: App) -> None:
    @app.task
    async def fail() -> Notes:
        raise ValueError("no luck")

    tell = write(app)
    async with working(app):
        flow = app.flow("report")
        page = flow.add(tell, flow.add(fail))
        handle = await flow.submit()

        with pytest.raises(ExecutionSkipped, match="failed"):
            await handle[page].result(timeout=TIMEOUT)
        assert await handle.state() == "failed"


async def test_a_flow_with_a_key_is_submitted_once(app: App) -> None:
    find, tell = search(app), write(app)

    def build() -> Flow:
        flow = app.flow("report", key="tides")
        flow.add(tell, flow.add(find, "tides"))
        return flow

    async with app:
        first, again = await build().submit(), await build().submit()
        assert (first.outcome, again.outcome) == ("created", "duplicate")
        assert again.execution("write").execution_id == first.execution("write").execution_id
        with pytest.raises(KeyError, match="'nobody'"):
            again.execution("nobody")
        other = app.flow("report", key="tides")
        other.add(tell, other.add(find, "moons"))
        with pytest.raises(KeyConflict, match="member 'search' has another task or other arguments"):
            await other.submit()


async def test_cancelling_a_flow_cancels_its_unfinished_members(app: App) -> None:
    find = search(app)
    async with app:
        flow = app.flow("report")
        alone = flow.add(find.with_options(lane="nobody"), "tides")
        handle = await flow.submit()
        cancelled = await handle.cancel("not wanted", by="ops")

        assert (cancelled.count, await handle[alone].wait(), await handle.state()) == (1, "cancelled", "cancelled")


async def test_a_child_joins_the_flow_of_its_parent(app: App, given: Given) -> None:
    find = search(app)

    @app.task
    async def parent(ctx: Context, topic: str) -> int:
        child = await ctx.submit(find, topic)
        return (await child.result()).lines

    async with working(app):
        flow = app.flow("report")
        node = flow.add(parent, "tides")
        handle = await flow.submit()
        assert await handle[node].result(timeout=TIMEOUT) == 5

    described = await flows.describe_flow(given.conn, handle.flow_id)
    assert (described.node_count, described.counts) == (2, {"completed": 2})
    listed = await executions.list_executions(given.conn, flow=handle.flow_id)
    assert {item.task for item in listed.items} == {"parent", "search"}


def test_a_synchronous_program_can_submit_a_flow(app: App) -> None:
    find = search(app)
    flow = app.flow("report")
    flow.add(find, "tides")
    with app.sync() as sync:
        handle = sync(flow).submit()
        assert handle.execution("search").state() == "waiting"
        assert handle.cancel("not wanted").count == 1


def test_invalid_members_raise_when_they_are_added(app: App) -> None:
    find, tell = search(app), write(app)

    @app.task
    async def keep(payload: str) -> None: ...

    flow, other = app.flow("report"), app.flow("report")
    notes = flow.add(find, "tides")
    with pytest.raises(TypeError, match="notes"):
        flow.add(tell)
    with pytest.raises(TypeError, match="payload"):
        flow.add(keep, notes)
    with pytest.raises(ValueError, match=r"search.* another flow"):
        other.add(tell, notes)
    with pytest.raises(ValueError, match=r"search.* twice"):
        flow.add(tell, notes, notes)
    assert list(flow.nodes) == ["search"]
    assert other.nodes == {}


def test_the_arguments_of_a_node_have_the_annotated_types(app: App) -> None:
    @app.task
    async def search(topic: str, pages: int = 3) -> list[str]:
        return [topic] * pages

    @app.task
    async def write(notes: list[str], copies: int, title: str = "") -> str:
        return title + "".join(notes * copies)

    flow = app.flow("report")
    for wrong in ((3,), ("tides", "many"), (None,)):
        with pytest.raises(InvalidBody, match=r"arguments do not fit .*search"):
            flow.add(search, *wrong)
    notes = flow.add(search, "tides")
    with pytest.raises(InvalidBody, match=r"copies"):
        flow.add(write, notes, copies="two")
    with pytest.raises(TypeError, match="copies"):
        flow.add(write, notes)
    assert list(flow.nodes) == ["search"]
    assert flow.add(write, notes, 2).submission.payload == b'{"copies":2}'
