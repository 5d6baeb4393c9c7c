"""Fan out: submit many children, suspend until all have ended, add up. Run `python examples/fan_out.py 500`."""

import asyncio
import sys

from flowfabric import App, Child, ChildFailed, Context
from flowfabric.worker import Worker

app = App()


@app.task
async def count_words(page: int) -> int:
    """Count the words on one page of a book. Page 13 is unreadable."""
    if page == 13:
        raise ValueError("page 13 is torn out")
    return 250 + page % 7


@app.task
async def count_book(ctx: Context, pages: int) -> str:
    """Count all pages at once: one batch of children and one suspension, so this runs twice, however many pages."""
    children = await asyncio.gather(*(ctx.submit(count_words, page) for page in range(1, pages + 1)))
    counted = await asyncio.gather(*map(words_on, children))
    readable = [words for words in counted if words is not None]
    return f"{sum(readable)} words on {len(readable)} pages, {pages - len(readable)} torn"


async def words_on(child: Child[int]) -> int | None:
    try:
        return await child.result()
    except ChildFailed:
        return None


async def main(pages: str = "500") -> None:
    async with app:
        worker = Worker(app)
        working = asyncio.create_task(worker.run())
        execution = await count_book.submit(int(pages))
        print(await execution.result("1m"))
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
