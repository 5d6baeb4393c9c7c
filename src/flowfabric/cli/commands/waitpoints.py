"""`ff waitpoints`: what suspended executions wait for, and approving, rejecting and signalling."""

from collections.abc import Callable
from typing import Any, BinaryIO

import click
import msgspec

from flowfabric import payloads
from flowfabric.app import App
from flowfabric.cli import formatting, resolve, tables
from flowfabric.cli.command_group import CommandGroup
from flowfabric.cli.errors import JSON
from flowfabric.cli.options import (
    ReadFile,
    by_option,
    decorated,
    execution_argument,
    json,
    lane_and_namespace_filters,
    paged,
)
from flowfabric.cli.output import prints
from flowfabric.engine import waits as engine
from flowfabric.errors import ApprovalDigestMismatch, ExecutionNotSuspended, WaitpointNotFound
from flowfabric.ids import ExecutionId, shown
from flowfabric.model import Delivered, Page, SuspendedExecution, Waitpoint

SUSPENDED = ("execution=execution_id", "waitpoints=waitpoint_keys", "subject=about", "suspended=suspended_at",
             "times out=timeout_at")  # fmt: skip
OPEN_WAIT = ("execution=execution_id", "waitpoints=waitpoint_keys", "reason=reason_code", "suspended=suspended_at",
             "times out=timeout_at", "on timeout=timeout_behavior", "subject=about", "digest=about_digest")  # fmt: skip
WAITPOINT = ("waitpoint=key", "state", "accepts=required_signal_names", "signals=signal_count", "expires=expires_at",
             "closed=close_reason", "id=waitpoint_id", "kid", "fingerprint")  # fmt: skip

EFFECTS = {
    "resume_condition_satisfied": "the execution resumes",
    "appended_to_waitpoint": "counted, but more signals are needed",
    "appended_to_waitpoint_duplicate": "already counted, more signals are needed",
    "buffered_for_pending_waitpoint": "stored until the execution waits for it",
    "signal_ignored_matcher_failed": "ignored: the wait on this waitpoint does not count signals of this name",
    "signal_ignored_not_in_condition": "ignored: the execution does not wait on this waitpoint",
    "no_op": "ignored: only an operator or the timeout ends this wait",
}


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """What an execution waits for now (`asked`), and every waitpoint it has had."""

    asked: list[SuspendedExecution]
    waitpoints: list[Waitpoint]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """An approval or rejection: its subject, and its effect on the execution."""

    execution_id: ExecutionId
    waitpoint: str
    decision: str
    by: str
    outcome: str
    effect: str | None
    about: bytes | None
    about_digest: str | None


def decision_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that approve and reject share."""
    options = (
        execution_argument,
        click.argument("waitpoint", required=False),
        click.option("--note", metavar="TEXT", help="Message to the execution; recorded in the event log."),
        click.option("--yes", is_flag=True, help="Do not prompt for confirmation; the subject is still printed."),
        click.option("--digest", metavar="HEX",
                     help="Decide without a prompt, but only if the subject still has this digest (see describe)."),
        by_option,
    )  # fmt: skip
    return decorated(command, options)


def _decided(done: Decision) -> str:
    return f"{done.decision} by {done.by} on waitpoint {done.waitpoint}: {_result(done.outcome, done.effect)}"


def _signalled(done: Delivered) -> str:
    return f"signal {done.signal_id}: {_result(done.outcome, done.effect)}"


def _result(outcome: str, effect: str | None) -> str:
    if effect is None:
        return "duplicate; it was already counted" if outcome == "duplicate" else outcome
    return f"{outcome}; {EFFECTS.get(effect, effect)}"


@click.group(cls=CommandGroup)
def waitpoints() -> None:
    """List what suspended executions wait for; approve, reject or signal them."""


@waitpoints.command("list")
@lane_and_namespace_filters("executions")
@click.option("--reason-code", metavar="CODE",
              help="Only executions suspended for this reason, such as waiting_for_approval.")  # fmt: skip
@paged
@prints(*SUSPENDED, empty="no suspended executions match")
async def list_suspended(
    app: App, lane: str | None, namespace: str | None, reason_code: str | None, limit: int, cursor: str | None
) -> Page[SuspendedExecution]:
    """List suspended executions, the longest suspended first, and the subject of each approval.

    \b
    Example:
      ff waitpoints list --reason-code waiting_for_approval
    """
    return await app.waitpoints.list_suspended(
        lane=lane, namespace=namespace, reason_code=reason_code, limit=limit, cursor=cursor
    )


def _waits(found: Waits) -> str:
    cards = [tables.card(OPEN_WAIT, each) for each in found.asked]
    table = [tables.table(WAITPOINT, found.waitpoints)] if found.waitpoints else []
    return "\n\n".join([*cards, *table]) or "it has no waitpoints: it has never been suspended"


@waitpoints.command("describe")
@execution_argument
@prints(layout=_waits)
async def describe(app: App, execution: str) -> Waits:
    """Describe what an execution waits for, with the subject and its digest, and all its waitpoints.

    Tokens are never printed.

    \b
    Example:
      ff waitpoints describe 019df237-3e80-8a31-800c-3f9b71e5d004
    """
    execution_id = await resolve.execution_id(app, execution)
    async with app.database.connection() as conn:
        points = await engine.list_waitpoints(conn, execution_id, limit=1_000)
        return Waits(asked=await engine.list_waits(conn, execution_id), waitpoints=[*points.items])


@waitpoints.command("approve")
@decision_options
@prints(sentence=_decided)
async def approve(app: App, **given: Any) -> Decision:
    """Approve what an execution asks for. Prints the subject, prompts you, and approves exactly that subject.

    The digest of the printed subject is sent with the approval: if the subject has changed since, the approval is
    refused. WAITPOINT may be left out if there is only one. Each person counts once.

    \b
    Example:
      ff waitpoints approve 019df237-3e80-8a31-800c-3f9b71e5d004 publish --note "looks good"
    """
    return await _decide(app, "approve", **given)


@waitpoints.command("reject")
@decision_options
@prints(sentence=_decided)
async def reject(app: App, **given: Any) -> Decision:
    """Reject what an execution asks for. Prints the subject, prompts you, and rejects exactly that subject.

    \b
    Example:
      ff waitpoints reject 019df237-3e80-8a31-800c-3f9b71e5d004 publish --note "the title is wrong"
    """
    return await _decide(app, "reject", **given)


@waitpoints.command("signal")
@execution_argument
@click.argument("waitpoint")
@click.argument("name", required=False)
@click.argument("payload", required=False)
@click.option("--token-file", type=ReadFile(),
              help="Send as an outside caller with the token in this file; - is standard input.")  # fmt: skip
@click.option("--digest", metavar="HEX", help="Digest of the subject, if the waitpoint requires it.")
@by_option
@prints(sentence=_signalled)
async def signal(
    app: App, execution: str, waitpoint: str, name: str | None, payload: str | None, token_file: BinaryIO | None,
    **given: Any,
) -> Delivered:  # fmt: skip
    """Send a signal to a waitpoint, as an operator or with its token.

    PAYLOAD is JSON. NAME is the name of the signal, by default that of the waitpoint; leave it out, and the payload
    follows the waitpoint.

    \b
    Examples:
      ff waitpoints signal 019df237-3e80-8a31-800c-3f9b71e5d004 go '{"ok": 1}'
      ff waitpoints signal 019df237-3e80-8a31-800c-3f9b71e5d004 paid received '{"amount": 12}'
    """
    name, value = _named(waitpoint, name, payload)
    asked = await resolve.execution(app, execution)
    if token_file is not None:
        token = token_file.read(4_096).decode(errors="replace").strip()
        return await asked.signal(waitpoint, value, token=token, name=name, source=given["by"])
    sent = None if value is None else payloads.encode(value)
    async with app.database.connection() as conn:
        done = await engine.deliver_approval(
            conn, asked.execution_id, waitpoint, name, by=given["by"], payload=sent, digest=_digest(given["digest"])
        )
    app.notifier.send(lanes=[done.lane] if done.lane else [])
    return done


def _named(waitpoint: str, name: str | None, payload: str | None) -> tuple[str, Any]:
    """The name of a signal and its payload. A name that is JSON is the payload: signals are named by words."""
    if payload is not None or name is None:
        return waitpoint if name is None else name, None if payload is None else json(payload)
    if name == "-" or name.startswith(("{", "[", '"')):
        return waitpoint, json(name)
    try:
        return waitpoint, msgspec.json.decode(name)
    except msgspec.DecodeError:
        return name, None


async def _decide(
    app: App, decision: str, *, execution: str, waitpoint: str | None, by: str, note: str | None, yes: bool,
    digest: str | None,
) -> Decision:  # fmt: skip
    execution_id = await resolve.execution_id(app, execution)
    async with app.database.connection() as conn:
        asked, waitpoint = _chosen(execution_id, await engine.list_waits(conn, execution_id), waitpoint)
        _agree(asked, waitpoint, decision, yes=yes, digest=digest)
        sent = None if note is None else payloads.encode(note)
        done = await engine.deliver_approval(
            conn, execution_id, waitpoint, decision, by=by, note=note, payload=sent, digest=_digest(asked.about_digest)
        )
    app.notifier.send(lanes=[done.lane] if done.lane else [])
    return Decision(
        execution_id=execution_id,
        waitpoint=waitpoint,
        decision=decision,
        by=by,
        outcome=done.outcome,
        effect=done.effect,
        about=asked.about,
        about_digest=asked.about_digest,
    )


def _agree(asked: SuspendedExecution, waitpoint: str, decision: str, *, yes: bool, digest: str | None) -> None:
    """Print the subject and prompt for confirmation. With the right digest, the caller has seen the subject before."""
    if digest is not None:
        if digest.lower() != (asked.about_digest or ""):
            raise ApprovalDigestMismatch(
                f"digest {shown(digest)} is not the digest of the subject; read it again and use {asked.about_digest}"
            )
        return
    if not (yes and click.get_current_context().meta.get(JSON)):
        subject = "(no subject)" if asked.about is None else formatting.pretty(asked.about)
        name = formatting.printable(waitpoint)
        click.echo(f"{asked.execution_id} waits on waitpoint {name} for a decision about:\n{subject}", err=True)
    if not yes:
        click.confirm(f"{decision} this?", abort=True, err=True)


def _chosen(
    execution: ExecutionId, waits: list[SuspendedExecution], waitpoint: str | None
) -> tuple[SuspendedExecution, str]:
    """The wait and the waitpoint to decide on; without a name, the only waitpoint."""
    if not waits:
        raise ExecutionNotSuspended(f"execution {execution} does not wait for a signal or an approval")
    keys = [(wait, key) for wait in waits for key in wait.waitpoint_keys]
    meant = [(wait, key) for wait, key in keys if waitpoint in (None, key)]
    if len(meant) == 1:
        return meant[0]
    if not keys:
        hint = f"it has none: only `ff executions resume {execution}` or its timeout ends its wait"
    else:
        hint = f"use one of its waitpoints: {', '.join(key for _, key in keys)}"
    if waitpoint is None:
        raise click.UsageError(f"the argument WAITPOINT is missing; {hint}")
    raise WaitpointNotFound(f"execution {execution} does not wait on waitpoint {shown(waitpoint)}; {hint}")


def _digest(text: str | None) -> bytes | None:
    try:
        return None if text is None else bytes.fromhex(text)
    except ValueError:
        how = "is invalid; use the one that `ff waitpoints describe` prints"
        raise click.UsageError(f"digest {shown(str(text))} {how}") from None
