"""A flow: tasks that wait for other tasks and receive their results. Run `python examples/flow.py tides`."""

import asyncio
import sys

from flowfabric import App
from flowfabric.worker import Worker

app = App()


@app.task
async def search(topic: str) -> list[str]:
    return [f"{topic} come in", f"{topic} go out"]


@app.task
async def count(lines: list[str]) -> int:
    return sum(len(line.split()) for line in lines)


@app.task
async def ask(model: str, lines: list[str]) -> str:
    """Ask a model for a title. The slow model is down."""
    if model == "slow":
        raise ValueError("the slow model is down")
    return lines[0].upper()


@app.task
async def choose(quick: str = "", slow: str = "") -> str:
    """Return the title that arrived first; the other may be missing."""
    return quick or slow


@app.task
async def write(title: str, lines: list[str], words: int) -> str:
    return f"{title}: {'; '.join(lines)} ({words} words)"


async def main(topic: str = "tides") -> None:
    flow = app.flow("report")
    lines = flow.add(search, topic)
    words = flow.add(count, lines)
    title = flow.add(choose, flow.add(ask, "quick", lines), flow.add(ask, "slow", lines)).any_of(let_run=True)
    page = flow.add(write, title, lines, words)
    async with app:
        worker = Worker(app)
        working = asyncio.create_task(worker.run())
        handle = await flow.submit()
        print(await handle[page].result("1m"))
        print(f"the flow: {await handle.wait('1m')}")
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
