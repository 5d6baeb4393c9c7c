"""A web API that submits long work to workers. Needs `pip install fastapi uvicorn`.

Run `ff worker fastapi_app.py:app` and `uvicorn fastapi_app:api` in this directory, with FLOWFABRIC_URL set.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.requests import Request
from fastapi.responses import JSONResponse

from flowfabric import App, Context, FlowFabricError

app = App()


@app.task(lane="reports", retries=3)
async def report(ctx: Context, topic: str) -> str:
    draft = await ctx.step("write", lambda: f"All about {topic}.")
    verdict = await ctx.approval("publish", subject=draft, timeout="2d")
    return draft if verdict.approved else "withdrawn"


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with app:
        yield


api = FastAPI(lifespan=lifespan)


@api.exception_handler(FlowFabricError)
async def refused(_: Request, refusal: FlowFabricError) -> JSONResponse:
    """Turn every FlowFabric error into its status and code: 404 execution_not_found, 409 waitpoint_closed."""
    return JSONResponse({"error": refusal.code, "message": refusal.message}, status_code=refusal.status)


@api.post("/reports", status_code=202)
async def ask(topic: str) -> dict[str, str]:
    execution = await report.with_options(key=f"report-{topic}").submit(
        topic
    )  # a repeated request gets the same execution
    return {"id": str(execution.execution_id)}


@api.get("/reports/{execution_id}")
async def look(execution_id: str) -> dict[str, object]:
    execution = app.execution(execution_id)
    found = await execution.describe()
    if found.state.public_state == "completed":
        return {"state": "completed", "report": await execution.result()}
    return {"state": found.state.public_state, "reason": found.explanation.sentence}


@api.post("/reports/{execution_id}/approval")
async def approve(execution_id: str, shown: str, person: str) -> dict[str, str]:
    """Approve the report. In a real application, take `person` from the login, never from the request."""
    delivered = await app.execution(execution_id).approve("publish", by=person, subject=shown)
    return {"outcome": delivered.outcome}
