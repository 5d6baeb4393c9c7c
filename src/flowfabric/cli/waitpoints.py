"""`ff waitpoints`: what executions wait for, and answering them."""

from collections.abc import Callable
from typing import Any, BinaryIO

import click
import msgspec

from flowfabric import payloads
from flowfabric.app import App
from flowfabric.cli import tables, texts
from flowfabric.cli.answers import answering
from flowfabric.cli.options import ReadFile, acting, json, one_execution, paged, within
from flowfabric.cli.refusals import JSON
from flowfabric.engine import waits as engine
from flowfabric.errors import ApprovalDigestMismatch, ExecutionNotSuspended, WaitpointNotFound
from flowfabric.ids import shown
from flowfabric.model import Delivered, Page, SuspendedExecution, Waitpoint

WAITING = (
    "execution=execution_id",
    "waitpoints=waitpoint_keys",
    "asks=about",
    "since=suspended_at",
    "until=timeout_at",
)
ASKED = ("execution=execution_id", "waitpoints=waitpoint_keys", "reason=reason_code", "since=suspended_at",
         "until=timeout_at", "then=timeout_behavior", "asks=about", "digest=about_digest")  # fmt: skip
POINTS = ("waitpoint=key", "state", "takes=required_signal_names", "signals=signal_count", "expires=expires_at",
          "closed=close_reason", "id=waitpoint_id", "kid", "fingerprint")  # fmt: skip


EFFECTS = {
    "resume_condition_satisfied": "the execution goes on",
    "appended_to_waitpoint": "it counts, and more is needed",
    "appended_to_waitpoint_duplicate": "it adds nothing new, and more is needed",
    "buffered_for_pending_waitpoint": "it is kept until the execution asks",
    "signal_ignored_matcher_failed": "it counts for nothing: this waitpoint asks for another answer",
    "signal_ignored_not_in_condition": "it counts for nothing: nothing waits on this waitpoint",
    "no_op": "it counts for nothing: only an operator or the timeout ends this wait",
}


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """What an execution asks now, and every waitpoint it has had."""

    asked: list[SuspendedExecution]
    waitpoints: list[Waitpoint]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided, on what, and what came of it."""

    execution_id: str
    waitpoint: str
    decision: str
    by: str
    outcome: str
    effect: str | None
    about: bytes | None
    about_digest: str | None


def deciding(command: Callable[..., Any]) -> Callable[..., Any]:
    """What approving and rejecting share."""
    for option in (
        acting,
        click.option(
            "--digest", metavar="HEX", help="Decide on what has this digest, as `show` gave it, without asking."
        ),
        click.option("--yes", is_flag=True, help="Do not ask; what is decided on is shown all the same."),
        click.option("--note", help="A word to the execution and the log."),
        click.argument("waitpoint", required=False),
        one_execution,
    ):
        command = option(command)
    return command


def _says_decision(done: Decision) -> str:
    said = f"{done.decision} by {done.by} on waitpoint {done.waitpoint}: {done.outcome}"
    return f"{said}; {EFFECTS.get(done.effect, done.effect)}" if done.effect else said


@click.group()
def waitpoints() -> None:
    """What executions wait for, and answering them."""


@waitpoints.command("list")
@within
@click.option("--reason-code", metavar="WORD", help="Only for this reason, such as waiting_for_approval.")
@paged
@answering(*WAITING, none="nothing waits for an answer")
async def list_suspended(
    app: App, lane: str | None, namespace: str | None, reason_code: str | None, limit: int, cursor: str | None
) -> Page[SuspendedExecution]:
    """List the executions that wait for an answer, the longest first, and what each asks.

    \b
    Example:
      ff waitpoints list --reason-code waiting_for_approval
    """
    async with app.database.connection() as conn:
        return await engine.list_suspended(
            conn, lane=lane, namespace=namespace, reason_code=reason_code, limit=limit, cursor=cursor
        )


def _laid_out(found: Waits) -> str:
    asked = [tables.card(ASKED, each) for each in found.asked]
    points = [tables.table(POINTS, found.waitpoints)] if found.waitpoints else []
    return "\n\n".join([*asked, *points]) or "it has never waited"


@waitpoints.command("show")
@one_execution
@answering(shows=_laid_out)
async def show(app: App, execution: str) -> Waits:
    """Show what an execution asks now, with its digest, and its waitpoints. A token is never shown.

    \b
    Example:
      ff waitpoints show {fp:24}:550e8400-e29b-41d4-a716-446655440000
    """
    execution_id = app.execution(execution).execution_id
    async with app.database.connection() as conn:
        points = await engine.list_waitpoints(conn, execution_id, limit=1_000)
        return Waits(asked=await engine.list_waits(conn, execution_id), waitpoints=[*points.items])


@waitpoints.command("approve")
@deciding
@answering(says=_says_decision)
async def approve(app: App, **given: Any) -> Decision:
    """Approve what an execution asks. Shows it, asks you, and approves exactly what was shown.

    The digest of what was shown goes with the answer: if something else is asked by then, it is refused. WAITPOINT may
    be left out where there is only one. One person counts once.

    \b
    Example:
      ff waitpoints approve {fp:24}:550e8400-e29b-41d4-a716-446655440000 publish --note "read it twice"
    """
    return await _decide(app, "approve", **given)


@waitpoints.command("reject")
@deciding
@answering(says=_says_decision)
async def reject(app: App, **given: Any) -> Decision:
    """Reject what an execution asks. Shows it, asks you, and rejects exactly what was shown.

    \b
    Example:
      ff waitpoints reject {fp:24}:550e8400-e29b-41d4-a716-446655440000 publish --note "the title is wrong"
    """
    return await _decide(app, "reject", **given)


@waitpoints.command("signal")
@one_execution
@click.argument("waitpoint")
@click.argument("name")
@click.argument("payload", type=json, required=False)
@click.option("--token-file", type=ReadFile(), help="Where the waitpoint's token stands; - is standard input.")
@click.option("--digest", metavar="HEX", help="The digest of what is asked, where it counts only with that.")
@acting
@answering("outcome", "effect", "signal=signal_id")
async def signal(
    app: App, execution: str, waitpoint: str, name: str, payload: Any, token_file: BinaryIO | None, **given: Any
) -> Delivered:
    """Send a signal to a waitpoint: as an operator, or with its token as somebody from outside.

    \b
    Example:
      ff waitpoints signal {fp:24}:550e8400-e29b-41d4-a716-446655440000 paid received '{"amount": 12}'
    """
    asked = app.execution(execution)
    if token_file is not None:
        token = token_file.read(4_096).decode(errors="replace").strip()
        return await asked.signal(waitpoint, payload, token=token, name=name, source=given["by"])
    sent = None if payload is None else payloads.encode(payload)
    async with app.database.connection() as conn:
        done = await engine.deliver_approval(
            conn, asked.execution_id, waitpoint, name, by=given["by"], payload=sent, digest=_digest(given["digest"])
        )
    app.notifier.send(lanes=[done.lane] if done.lane else [])
    return done


async def _decide(
    app: App, decision: str, *, execution: str, waitpoint: str | None, by: str, note: str | None, yes: bool,
    digest: str | None,
) -> Decision:  # fmt: skip
    execution_id = app.execution(execution).execution_id
    async with app.database.connection() as conn:
        asked, waitpoint = _chosen(execution, await engine.list_waits(conn, execution_id), waitpoint)
        _agree(asked, waitpoint, decision, yes=yes, digest=digest)
        sent = None if note is None else payloads.encode(note)
        done = await engine.deliver_approval(
            conn, execution_id, waitpoint, decision, by=by, note=note, payload=sent, digest=_digest(asked.about_digest)
        )
    app.notifier.send(lanes=[done.lane] if done.lane else [])
    return Decision(
        execution_id=execution,
        waitpoint=waitpoint,
        decision=decision,
        by=by,
        outcome=done.outcome,
        effect=done.effect,
        about=asked.about,
        about_digest=asked.about_digest,
    )


def _agree(asked: SuspendedExecution, waitpoint: str, decision: str, *, yes: bool, digest: str | None) -> None:
    """Show what is decided on, and hear that it is meant; with the digest, somebody has seen it before."""
    if digest is not None:
        if digest.lower() != (asked.about_digest or ""):
            raise ApprovalDigestMismatch(f"what is asked has the digest {asked.about_digest}, not {shown(digest)}")
        return
    if not (yes and click.get_current_context().meta.get(JSON)):
        about = "nothing in particular" if asked.about is None else texts.pretty(asked.about)
        click.echo(f"{asked.execution_id} asks on waitpoint {texts.printable(waitpoint)}:\n{about}", err=True)
    if not yes:
        click.confirm(f"{decision} this?", abort=True, err=True)


def _chosen(execution: str, waits: list[SuspendedExecution], waitpoint: str | None) -> tuple[SuspendedExecution, str]:
    """The wait that is meant, and its waitpoint; without one being named, the only one there is."""
    if not waits:
        raise ExecutionNotSuspended(f"execution {execution} waits for no answer")
    keys = [(wait, key) for wait in waits for key in wait.waitpoint_keys]
    meant = [(wait, key) for wait, key in keys if waitpoint in (None, key)]
    if len(meant) == 1:
        return meant[0]
    there_are = ", ".join(key for _, key in keys) or "none: it waits for an operator, and `ff executions resume`"
    if waitpoint is None:
        raise click.UsageError(f"say which waitpoint is meant; there are {there_are}")
    raise WaitpointNotFound(f"execution {execution} waits on no waitpoint {shown(waitpoint)}; there are {there_are}")


def _digest(text: str | None) -> bytes | None:
    try:
        return None if text is None else bytes.fromhex(text)
    except ValueError:
        how = "is not hexadecimal; write it as `ff waitpoints show` does"
        raise click.UsageError(f"digest {shown(str(text))} {how}") from None
