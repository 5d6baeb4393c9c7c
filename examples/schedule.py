"""Schedules: a report on weekday mornings and a pulse every second. Run `python examples/schedule.py`."""

import asyncio

from flowfabric import App
from flowfabric.engine import schedules
from flowfabric.worker import Worker

app = App()
pulses = asyncio.Queue[int]()


@app.schedule(cron="0 9 * * 1-5", tz="Europe/Berlin", arguments={"topic": "tides"}, catch_up="last")
@app.task
async def report(topic: str) -> str:
    return f"all about {topic}"


@app.schedule(every="1s", overlap="skip")
@app.task
async def pulse() -> None:
    pulses.put_nowait(1)


async def main() -> None:
    async with app:
        worker = Worker(app)  # creates the schedules, runs the sweeps and the tasks
        working = asyncio.create_task(worker.run())
        for number in range(1, 4):
            await pulses.get()
            print(f"pulse {number}")
        async with app.database.connection() as conn:
            fired = await schedules.fire_schedule(conn, "report", by="ada")
            print("report by hand:", await app.execution(fired.execution_id).result("1m"))
            for schedule in (await schedules.list_schedules(conn)).items:
                ticks = ", ".join(f"{tick:%a %H:%M}" for tick in schedule.ticks[:2])
                print(f"{schedule.name} ({schedule.when}): {schedule.state}, next {ticks} UTC")
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
