"""Amounts: {dimension: whole number}, as they are sent and as a refusal tells of them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from uuid import UUID

import msgspec

from flowfabric import ids
from flowfabric.errors import BudgetExhausted, BudgetNotFound, Invalid, InvalidName, InvalidUsage
from flowfabric.ids import check_text, shown
from flowfabric.model import Reserved, Settled, Usage

MOST = 9_007_199_254_740_991


def budget_id(budget: str | UUID, namespace: str) -> UUID:
    """The id of the budget that is meant. Raises `InvalidNamespace`; no budget has a name that cannot be one."""
    try:
        return ids.resolve_named_id("budget", namespace, str(budget))
    except InvalidName:
        raise not_found(budget, namespace) from None


def not_found(budget: str | UUID, namespace: str) -> BudgetNotFound:
    """The refusal of a budget that is not there, in the words of whoever asked for it: SQL knows its id alone."""
    return BudgetNotFound(
        f"no budget {shown(str(budget))} in namespace {shown(namespace)}; make it with create_budget, or look at its "
        "name and namespace"
    )


@contextmanager
def named(budget: str | UUID, namespace: str) -> Iterator[UUID]:
    """The id of the budget that is meant, for a call that says by its name when it is not there."""
    try:
        yield budget_id(budget, namespace)
    except BudgetNotFound:
        raise not_found(budget, namespace) from None


def amounts_text(amounts: object, refusal: type[Invalid] = InvalidUsage, **fields: object) -> str:
    """Amounts as JSON; SQL says what is wrong with them, save what Postgres could not even read."""
    if not isinstance(amounts, Mapping):
        raise refusal(f"{shown(str(amounts))} are no amounts; give a whole number per dimension", **fields)
    return msgspec.json.encode({_dimension(name, refusal, fields): _plain(n) for name, n in amounts.items()}).decode()


def exhausted(budget: str, answer: Usage | Reserved | Settled) -> BudgetExhausted:
    """A hard breach as the exception for those who did not plan for it."""
    return BudgetExhausted(
        f"budget {shown(budget)} has {answer.dimension} {answer.used} used and {answer.reserved} set aside of "
        f"{answer.hard_limit}, and this does not fit; raise or reset it",
        budget=budget,
        dimension=answer.dimension,
        used=answer.used,
        reserved=answer.reserved,
        hard_limit=answer.hard_limit,
    )


def _dimension(name: object, refusal: type[Invalid], fields: Mapping[str, object]) -> str:
    if isinstance(name, str):
        return check_text(name, "dimension")
    raise refusal(f"dimension {shown(str(name))} is no text; give one", **fields)


def _plain(amount: object) -> object:
    """An amount as JSON can say it: what is beyond all limits is just that, and what is no number is no number."""
    if isinstance(amount, int) and not isinstance(amount, bool):
        return max(min(amount, MOST + 1), -1)
    if isinstance(amount, float) and amount.is_integer():
        return _plain(int(amount))
    return amount if isinstance(amount, float) else "no number"
