"""Fan out: an execution submits many, steps aside until all have ended, adds up. `python examples/fan_out.py 200`."""

import asyncio
import sys

from flowfabric import App, Child, ChildFailed, Context
from flowfabric.worker import Worker

app = App()


@app.task
async def count_words(page: int) -> int:
    """One page of a book. Page 13 cannot be read."""
    if page == 13:
        raise ValueError("page 13 is torn out")
    return 250 + page % 7


@app.task
async def count_book(ctx: Context, pages: int) -> str:
    """All pages at once: one batch of children, one suspension, and this runs twice however many there are."""
    children = await asyncio.gather(*(ctx.submit(count_words, page) for page in range(1, pages + 1)))
    counted = await asyncio.gather(*map(words_on, children))
    readable = [words for words in counted if words is not None]
    return f"{sum(readable)} words on {len(readable)} pages, {pages - len(readable)} torn"


async def words_on(child: Child[int]) -> int | None:
    try:
        return await child.result()
    except ChildFailed:
        return None


async def main(pages: str = "200") -> None:
    async with app:
        worker = Worker(app)
        working = asyncio.create_task(worker.run())
        execution = await count_book.submit(int(pages))
        print(await execution.result("1m"))
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
