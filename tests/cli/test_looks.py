"""Snapshots of every command: its help, its table and its JSON."""

from collections.abc import Iterator

import click
import pytest

from flowfabric.cli.group import ff as group
from tests.cli import scene
from tests.cli.looks import FOLDER, Looks
from tests.cli.scene import (
    ASKING,
    BROKEN,
    BUSY,
    CANCELLED,
    DONE,
    FAILED,
    FLOW,
    HELD,
    LOST,
    NAPPING,
    NO_FLOW,
    PAUSED,
    RETRIED,
    SIGNALLED,
    STUCK,
    TALKING,
    UNSERVED,
    WAITING,
)  # fmt: skip
from tests.given import Given

# Commands that run until they are stopped: only the snapshot of their help is here.
HELP_ONLY = {"dev", "serve", "sweep", "worker"}


def commands(command: click.Command = group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command, with the words to type: `lanes pause`."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name, each in sorted(command.commands.items()):
        yield from commands(each, f"{path} {name}".strip())


def test_every_command_has_a_snapshot() -> None:
    for path, _ in commands():
        file = FOLDER / f"{path.replace(' ', '-')}.txt"
        assert file.exists(), f"no snapshot of `ff {path}`"
        assert path in HELP_ONLY or "--json" in _ways(file.read_text()), f"no snapshot of `ff {path} --json`"


def _ways(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.startswith("$ "))


@pytest.mark.parametrize("command", sorted(HELP_ONLY))
async def test_help_of_long_running_commands(look: Looks, command: str) -> None:
    await look(command)


async def test_lists_and_cards_of_executions(look: Looks, given: Given) -> None:
    await scene.ended(given)
    await scene.blocked(given)
    await scene.raised(given)

    await look("executions list", "", "--json --limit 1", "--state failed --state cancelled", "--ids",
               "--ids --json --limit 1", "--limit 2",
               "--lane mail --json", "--tag billing.customer=4711", "--task nothing", "--order id --limit 1",
    )  # fmt: skip
    await look("executions describe", f"{DONE}", f"{DONE} --json", f"{FAILED}", f"{ASKING}",
               f"{BROKEN}", f"{BROKEN} --json")  # fmt: skip
    await look("executions attempts", f"{RETRIED}", f"{RETRIED} --json", f"{BROKEN}", f"{PAUSED}")
    await look("executions events", f"{CANCELLED}", f"{CANCELLED} --json", f"{CANCELLED} --limit 1")


async def test_steps(look: Looks, given: Given) -> None:
    await scene.saved(given)
    await scene.running(given)
    await given.submitted(execution_id=WAITING)

    ways = [f"{NAPPING} {way}" for way in ("--results", "--json --limit 2", "--results --json", "--limit 2")]
    await look("executions steps", f"{NAPPING}", *ways, f"{BUSY}", f"{BUSY} --limit 2", f"{WAITING}", f"{STUCK}")


async def test_frames(look: Looks, given: Given) -> None:
    await scene.streamed(given)
    await given.cancelled(execution_id=CANCELLED)

    ways = [f"{TALKING} {way}" for way in ("--all", "--attempt 1", "--json --all", "--cursor 1:x")]
    await look("executions tail", f"{TALKING}", *ways, f"{CANCELLED}", f"{STUCK}")


async def test_explanations(look: Looks, given: Given) -> None:
    await scene.ended(given)
    await scene.blocked(given)
    await given.submitted(execution_id=WAITING)

    ways = [str(each) for each in (PAUSED, UNSERVED, RETRIED, ASKING, LOST, DONE, FAILED, HELD, WAITING)]
    await look("executions explain", *ways, f"{PAUSED} --json")


async def test_actions_on_executions(look: Looks, given: Given) -> None:
    await scene.ended(given)
    await scene.asking(given)
    await given.submitted(execution_id=WAITING)
    await given.submitted(execution_id=STUCK)

    await look("executions hold", f"{WAITING} --reason later", f"{WAITING} --json")
    await look("executions unhold", f"{WAITING}", f"{HELD} --json")
    await look("executions change-priority", f"{WAITING} 100", f"{WAITING} 5 --json")
    await look("executions set-tag", f"{WAITING} a.b=c", f"{WAITING} a.b= --json")
    await look("executions resume", f"{ASKING} --reason phoned", f"{ASKING} --json")
    await look(
        "executions override",
        f"{STUCK} --complete '{{\"paid\": true}}' --reason phoned",
        f"{STUCK} --fail --reason x --json",
    )
    await look("executions cancel", f"{WAITING} {ASKING}", f"{DONE} {HELD} --json")
    await look(
        "executions replay",
        f"{FAILED} {CANCELLED}",
        f"{FAILED} --json",
        f"{DONE} --json --from-scratch",
        f"{DONE} --from charge",
    )


async def test_flows(look: Looks, given: Given) -> None:
    await scene.flow(given)

    await look("flows list", "", "--json", "--state completed", "--namespace nowhere")
    await look("flows describe", f"{FLOW}", f"{FLOW} --json", f"{FLOW} --limit 1", f"{NO_FLOW}")
    await look("flows cancel", f"{FLOW} --reason wrong --policy cancel_pending", f"{FLOW} --json", f"{NO_FLOW}")


async def test_lanes(look: Looks, given: Given) -> None:
    await scene.blocked(given)

    await look(
        "lanes configure",
        "quick --keep-renewals --stream-retention-maxlen 500 --stream-retention 2h",
        "quick --json",
        "quick --stream-retention-maxlen 0",
    )
    await look("lanes list", "", "--json --limit 1", "--limit 1")
    await look("lanes describe", "mail", "quick", "mail --json", "nowhere")
    await look("lanes pause", "models --reason maintenance", "models", "models --json")
    await look("lanes drain", "models", "models --json")
    await look("lanes resume", "models", "models", "models --json")


async def test_waitpoints(look: Looks, given: Given) -> None:
    await scene.asking(given, approvers=2)
    await scene.signalled(given)

    await look("waitpoints list", "", "--json", "--reason-code waiting_for_approval", "--lane nowhere")
    await look("waitpoints describe", f"{ASKING}", f"{ASKING} --json")
    await look("waitpoints approve", f"{ASKING} publish --yes", f"{ASKING} --yes --json")
    await look("waitpoints reject", f"{ASKING} --yes --note no --json", f"{ASKING} --yes")
    await look(
        "waitpoints signal", f"{SIGNALLED} paid received '{{\"amount\": 12}}'", f"{SIGNALLED} paid received --json"
    )


async def test_signing_keys(look: Looks) -> None:
    await look("signing-keys rotate", "k2 --grace 2d", "k3 --json")
    await look("signing-keys seed", "k3", "k3 --json", "k9")
    await look("signing-keys list", "", "--json")


async def test_workers(look: Looks, given: Given) -> None:
    await scene.blocked(given)

    await look("workers list", "", "--json", "--lane nowhere")
    await look("workers describe", "pool-1", "pool-1 --json", "pool-2")
    await look("workers mark-dead", "pool-1 --reason gone", "pool-1 --json")


async def test_tasks(look: Looks, given: Given) -> None:
    await scene.versioned(given)

    await look("tasks list", "", "--json", "--limit 1", "--namespace nowhere")
    await look("tasks describe", "report", "report --json", "nothing")


async def test_submitting(look: Looks, given: Given) -> None:
    await look(
        "submit",
        *('greet \'{"name": "Ada"}\' --key once', 'greet \'{"name": "Ada"}\' --key once --json'),
        *("greet --key once --json", "greet --lane mail --delay 1h"),
    )


async def test_events(look: Looks, given: Given) -> None:
    await scene.ended(given)

    await look("events tail", "--once --limit 4", "--once --limit 2 --json", "--once --kind execution_cancelled",
               f"--once --acts --execution {HELD}", "--once --cursor nonsense")  # fmt: skip


async def test_commands_that_need_no_executions(look: Looks) -> None:
    await look("migrate", "", "--check", "--json")
    await look("completion", "fish", "fish --json")
