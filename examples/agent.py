"""An agent that researches, writes and asks before it publishes; and what becomes of it when its worker is killed.

`make demo` tells the story. To play with it: `ff dev examples/agent.py:app`.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator

from flowfabric import App, Context, Execution
from flowfabric.engine import budgets

app = App(budgets={"research": {"tokens": 1_000_000}})


@app.task(lane="research", retries=3, timeout="10m", budgets=["research"])
async def report(ctx: Context, topic: str) -> str:
    """Three searches at once, a draft, a person's word, a translation, and out it goes."""
    questions = [f"{topic}: what", f"{topic}: why", f"{topic}: how"]
    notes = await asyncio.gather(*(ctx.step("search", search, question) for question in questions))
    await ctx.report_usage("research", tokens=400 * len(notes))  # counts once, however often this runs
    draft = await ctx.step("write", write, topic, notes)
    await ctx.report_usage("research", tokens=1_500)
    verdict = await ctx.approval("publish", subject=draft, timeout="2d")  # holds nothing while it waits
    if not verdict.approved:
        return "withdrawn"
    child = await ctx.submit(translate, draft)  # an execution of its own, wherever there is room
    return await ctx.step("publish", publish, await child.result())


@app.task(lane="research", retries=3)
async def translate(draft: str) -> str:
    """A child: what its parent waits for, and holds nothing meanwhile."""
    await model(f"translate {draft!r}")
    return f"{draft}, translated"


async def search(question: str) -> str:
    await model(f"search {question!r}")
    return f"notes on {question}"


async def write(topic: str, notes: list[str]) -> str:
    await model(f"write about {topic}, from {len(notes)} notes")
    return f"{topic.capitalize()}, in {len(notes)} chapters"


async def publish(draft: str) -> str:
    await model(f"publish {draft!r}")
    return f"published: {draft}"


async def model(what: str) -> None:
    """A call that takes a while and costs money: the reason why it should not be made twice."""
    print(f"            [process {os.getpid()}] {what}", flush=True)
    await asyncio.sleep(0.4)


class Worker:
    """`ff worker examples/agent.py:app`, as a process of its own; what it prints is passed on."""

    async def __aenter__(self) -> "Worker":
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "flowfabric.cli", "worker", f"{__file__}:app", "--lease", "2s"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._process.returncode is None:
            self._process.terminate()
        async for line in self._lines():
            print(line)
        await self._process.wait()

    async def until(self, text: str) -> None:
        """Pass on what it prints, until it has printed this."""
        async for line in self._lines():
            print(line)
            if text in line:
                return

    def kill(self) -> None:
        self._process.kill()

    async def _lines(self) -> AsyncIterator[str]:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if not line.startswith(b"working as"):
                yield line.decode().rstrip()


async def tell() -> None:
    """Submit one report, kill the worker that runs it, start another, stop that too, and decide."""
    async with app:
        execution = await report.submit("tides")
        told("submitted", f"{execution.execution_id} {await sentence(execution)}")
        async with Worker() as first:
            await first.until("write about tides")
            first.kill()
        told("kill -9", f"the worker is gone; the searches are saved. {await sentence(execution)}")
        async with Worker():
            await happened(execution, "execution_suspended")
        told("waits", f"and nothing runs any more: {await sentence(execution)}")

        await execution.approve("publish", by="ann", subject="Tides, in 3 chapters")
        told("approved", "by ann, who was shown the draft; a worker goes on where it stopped")
        async with Worker():
            result = await execution.result("1m")
        told("result", result)
        told("spent", await spent(execution))
        told("its life", ", ".join([event.kind async for event in execution.events()]))


async def happened(execution: Execution[str], kind: str) -> None:
    """Follow its life until this has happened."""
    async for event in execution.events():
        if event.kind == kind:
            return


async def sentence(execution: Execution[str]) -> str:
    return (await execution.explain()).sentence


async def spent(execution: Execution[str]) -> str:
    async with app.database.connection() as conn:
        [of_it] = await budgets.list_spending(conn, execution.execution_id)
        budget = await budgets.describe_budget(conn, "research")
    left = budget.hard_limits["tokens"] - budget.used["tokens"]
    return f"{of_it.spent['tokens']:,} tokens, each counted once; budget research has {left:,} left"


def told(what: str, line: str) -> None:
    print(f"{what:12}{line}", flush=True)


if __name__ == "__main__":
    asyncio.run(tell())
