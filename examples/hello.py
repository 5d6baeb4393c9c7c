"""The smallest app. `ff dev examples/hello.py:app` in one terminal, `python examples/hello.py world` in another."""

import asyncio
import sys

from flowfabric import App

app = App()


@app.task
async def hello(name: str) -> str:
    return f"hello {name}"


async def main(name: str = "world") -> None:
    async with app:
        execution = await hello.submit(name)
        print(await execution.result("1m"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
