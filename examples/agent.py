"""An agent that researches, writes and asks before it publishes, and that survives when its worker is killed.

`make demo` runs this program. To try the agent yourself: `ff dev examples/agent.py:app`.
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
    """Make three searches at once, write a draft, wait for approval, translate and publish."""
    questions = [f"{topic}: what", f"{topic}: why", f"{topic}: how"]
    notes = await asyncio.gather(*(ctx.step("search", search, question) for question in questions))
    await ctx.report_usage("research", tokens=400 * len(notes))  # counted once, however often this line runs
    draft = await ctx.step("write", write, topic, notes)
    await ctx.report_usage("research", tokens=1_500)
    verdict = await ctx.approval("publish", subject=draft, timeout="2d")  # uses no thread or connection while it waits
    if not verdict.approved:
        return "withdrawn"
    child = await ctx.submit(translate, draft)  # a separate execution, on any worker
    return await ctx.step("publish", publish, await child.result())


@app.task(lane="research", retries=3)
async def translate(draft: str) -> str:
    """A child execution. Its parent is suspended until it ends."""
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
    """Stand in for a slow, expensive call, which should not be made twice."""
    print(f"            [process {os.getpid()}] {what}", flush=True)
    await asyncio.sleep(0.4)


class Worker:
    """Run `ff worker examples/agent.py:app` as a separate process and print its output."""

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
        """Print its output until a line contains this text."""
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
    """Submit one report, kill its worker, start another, stop that one while the report waits, and approve."""
    async with app:
        execution = await report.submit("tides")
        told("submitted", f"{execution.execution_id} {await sentence(execution)}")
        async with Worker() as first:
            await first.until("write about tides")
            first.kill()
        told("kill -9", f"the worker is gone; the searches are saved. For now: {await sentence(execution)}")
        async with Worker():
            await happened(execution, "execution_suspended")
        told("waits", f"and nothing runs any more: {await sentence(execution)}")

        await execution.approve("publish", by="ann", subject="Tides, in 3 chapters")
        told("approved", "by ann, who was shown the draft; a new worker resumes the report")
        async with Worker():
            result = await execution.result("1m")
        told("result", result)
        told("spent", await spent(execution))
        told("its life", ", ".join([event.kind async for event in execution.events()]))


async def happened(execution: Execution[str], kind: str) -> None:
    """Follow the events of an execution until one of this kind."""
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
