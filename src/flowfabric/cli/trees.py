"""Trees of executions: an execution with its children, drawn with one line for each."""

from rich.text import Text
from rich.tree import Tree

from flowfabric.cli import tables
from flowfabric.cli.formatting import lasting, printable
from flowfabric.model import Description, ExecutionTree, PublicState, Summary


def drawn(tree: ExecutionTree) -> str:
    """The tree, and how to list the children that it has no room for."""
    return tables.rendered(_branch(tree, Tree(_line(tree.execution))))


def has_ended(found: Description | ExecutionTree) -> bool:
    """Whether the execution has ended, and with a tree all executions in it."""
    if isinstance(found, ExecutionTree):
        unfinished = found.child_states.keys() & UNFINISHED
        return found.execution.ended_at is not None and not unfinished and all(map(has_ended, found.children))
    return found.ended_at is not None


def states(found: Description | ExecutionTree) -> object:
    """What changes when an execution, or one in the tree, changes its state."""
    if isinstance(found, ExecutionTree):
        return state(found.execution), found.child_states, [states(child) for child in found.children]
    return state(found)


def state(of: Summary) -> object:
    """What changes when an execution changes its state, its attempt, its wait or its step."""
    steps = [(step.name, step.occurrence) for step in of.running]
    return of.execution_id, of.state, of.counts, of.due_at, of.explanation.waits_for, of.suspension, steps


ENDED = {PublicState.COMPLETED, PublicState.FAILED, PublicState.CANCELLED, PublicState.EXPIRED, PublicState.SKIPPED}
UNFINISHED = {str(each) for each in PublicState if each not in ENDED}


def _branch(tree: ExecutionTree, drawing: Tree) -> Tree:
    for child in tree.children:
        _branch(child, drawing.add(_line(child.execution)))
    if (rest := tree.child_count - len(tree.children)) > 0:
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(tree.child_states.items()))
        more = f"{rest:,} more; of {tree.child_count:,}: {counts}; " if tree.children else f"{counts}; "
        drawing.add(Text(f"{more}ff executions list --parent {tree.execution.execution_id}", style="dim"))
    return drawing


def _line(of: Summary) -> Text:
    public = of.state.public_state
    line = Text(f"{of.execution_id} {printable(of.task)} ").append(public, style=tables.STYLES.get(public, ""))
    if of.ended_at is None:
        return line.append(f": {printable(of.explanation.sentence)}")
    took = f" in {lasting(of.ended_at - of.started_at)}" if of.started_at else ""
    return line.append(took + (f": {printable(of.failure.reason)}" if of.failure and of.failure.reason else ""))
