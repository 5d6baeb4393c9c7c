"""Retries: a failed attempt is retried, unless the error is marked as non-retryable.

`ff dev examples/retries.py:app` in one terminal, `python examples/retries.py` in another.
"""

import asyncio

from flowfabric import App, Context, ExecutionFailed

app = App()


@app.task(retries=5, backoff="100ms", non_retryable=[LookupError])
async def forecast(ctx: Context, city: str) -> str:
    if city == "Atlantis":
        raise LookupError("there is no Atlantis")  # non-retryable: it would fail the same way again
    if ctx.attempt < 3:
        raise ConnectionError("the weather service is down")
    return f"it rains in {city}"


async def main() -> None:
    async with app:
        for city in ("Paris", "Atlantis"):
            execution = await forecast.submit(city)
            try:
                print(await execution.result("1m"))
            except ExecutionFailed as failed:
                print(f"failed: {failed.failure.reason if failed.failure else None}")
            print(f"  after {(await execution.describe()).counts.attempts} attempts")


if __name__ == "__main__":
    asyncio.run(main())
