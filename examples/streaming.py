"""A model whose words are shown while it writes them, also when its worker is killed in the middle of a sentence.

Run it: `python examples/streaming.py`. To follow it on another terminal: `ff executions tail ID`.
"""

import asyncio
import re
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from pathlib import Path

from flowfabric import App, Context
from flowfabric.model import Frame, Superseded

app = App()

PLAN = "1. the moon, 2. the sun, 3. the coast"
ANSWERS = [
    "Tides are moved by the moon, as sailors have always said,\nand you can watch it twice a day, because",
    "The moon pulls the sea towards it, and the sun helps a little.\nThe coast decides how high the water rises.",
]


@app.task(retries=3, timeout="10m")
async def explain(ctx: Context, topic: str) -> str:
    """Plan, then write; both are shown word by word. What a saved step has shown stays valid."""
    plan = await ctx.step("plan", write, ctx, "plan", PLAN)
    await ctx.progress(50, "writing")
    answer = await ctx.step("write", write, ctx, "answer", ANSWERS[(ctx.attempt - 1) % 2])
    await ctx.progress(100, "done")
    return f"{plan}\n{answer}\n"


async def write(ctx: Context, name: str, text: str) -> str:
    """Ask the model, and show its words as they come."""
    async with ctx.stream(name) as out:
        async for token in model(text):
            await out.write(token)
        await out.write("\n")
    return text


async def model(text: str) -> AsyncIterator[str]:
    """Stand in for a model: it says one word at a time, and something else whenever it is asked again."""
    for token in re.findall(r"\s*\S+", text):
        await asyncio.sleep(0.05)
        yield token


class Page:
    """The text on the terminal: what readers should see now."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    @property
    def text(self) -> str:
        return "".join(frame.text or "" for frame in self.frames if frame.kind == "stdout")

    def add(self, frame: Frame) -> None:
        self.frames.append(frame)
        if frame.kind == "stdout":
            print(frame.text, end="", flush=True)

    def replace(self, mark: Superseded) -> None:
        """Forget what no longer counts, and erase it: the next attempt writes it again."""
        before = self.text
        self.frames = [frame for frame in self.frames if mark.keeps(frame)]
        void = before.removeprefix(self.text)
        if sys.stdout.isatty():
            print(f"\x1b[{void.count(chr(10))}F\x1b[J" if "\n" in void else "\r\x1b[K", end="", flush=True)
        else:
            print(f"\n-- attempt {mark.by} replaces attempt {mark.attempt}; void: {void!r} --")


async def start_worker() -> Process:
    """Run `ff worker examples/streaming.py:app` as another process."""
    place = f"{Path(__file__)}:app"
    command = [sys.executable, "-m", "flowfabric.cli", "worker", place, "--lease", "2s"]
    return await asyncio.create_subprocess_exec(*command, stdout=DEVNULL, stderr=DEVNULL)


async def tell() -> None:
    """Submit, read along, kill the worker while it writes, start another one, and read on."""
    async with app:
        execution = await explain.submit("tides")
        worker, was_killed = await start_worker(), False
        page = Page()
        try:
            async for frame in execution.frames():
                if isinstance(frame, Superseded):
                    page.replace(frame)
                elif isinstance(frame, Frame):
                    page.add(frame)
                if "twice a day" in page.text and not was_killed:
                    worker.kill()  # kill -9, in the middle of a sentence
                    await worker.wait()
                    worker, was_killed = await start_worker(), True
            result = await execution.result("1m")
        finally:
            if worker.returncode is None:
                worker.terminate()
            await worker.wait()
    print("read as it was returned:", page.text == result)


if __name__ == "__main__":
    asyncio.run(tell())
