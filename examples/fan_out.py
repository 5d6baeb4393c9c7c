"""Fan out: a child for each page of a book, at most 50 at once; one of them fails. `python examples/fan_out.py 500`."""

import asyncio
import sys

from flowfabric import App, ChildFailed, Context
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
    """Count all pages, and say which could not be read. It suspends once, so this runs twice, however many pages."""
    numbers = range(1, pages + 1)
    outcomes = await ctx.all_settled(ctx.map(count_words, numbers, max_running=50))
    words = [outcome for outcome in outcomes if not isinstance(outcome, ChildFailed)]
    torn = [page for page, outcome in zip(numbers, outcomes, strict=True) if isinstance(outcome, ChildFailed)]
    return f"{sum(words)} words on {len(words)} pages; not read: {torn}"


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
