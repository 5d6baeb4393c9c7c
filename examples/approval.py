"""An approval: a task asks for a decision and resumes when someone has answered, up to two days later.

`ff dev examples/approval.py:app` in one terminal; in another:

    python examples/approval.py ask tides
    python examples/approval.py list
    python examples/approval.py approve ID ann
"""

import asyncio
import json
import sys

from flowfabric import App, Context
from flowfabric.engine import waits

app = App()


@app.task
async def publish(ctx: Context, topic: str) -> str:
    draft = await ctx.step("write", lambda: {"title": topic.title(), "text": f"All about {topic}."})
    verdict = await ctx.approval("publish", subject=draft, timeout="2d")
    if verdict.timed_out:
        return "nobody answered"
    return f"published: {draft['title']}" if verdict.approved else f"withdrawn by {verdict.by[0]}"


async def asked() -> dict[str, dict[str, str]]:
    """The open approvals: what is shown, by execution id."""
    async with app.database.connection() as conn:
        waiting = (await waits.list_suspended(conn, reason_code="waiting_for_approval")).items
    return {str(each.execution_id): json.loads(each.about or b"{}") for each in waiting}


async def main(command: str = "", *words: str) -> None:
    async with app:
        match command, words:
            case "ask", [topic]:
                print((await publish.submit(topic)).execution_id)
            case "list", []:
                for execution_id, draft in (await asked()).items():
                    print(f"{execution_id} asks to publish {draft['title']!r}: {draft['text']}")
            case "approve" | "reject", [execution_id, person]:
                draft = (await asked())[execution_id]  # the decision is bound to what was shown
                execution = app.execution(execution_id)
                decide = execution.approve if command == "approve" else execution.reject
                await decide("publish", by=person, subject=draft)
                print(await execution.result("1m"))
            case _:
                print(__doc__)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
