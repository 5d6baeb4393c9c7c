"""Amounts: {dimension: whole number}, encoded for SQL and shown in errors."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from uuid import UUID

import msgspec

from flowfabric import ids
from flowfabric.errors import BudgetExhausted, BudgetNotFound, Invalid, InvalidName, InvalidUsage
from flowfabric.ids import check_text, shown
from flowfabric.model import Reserved, Settled, Usage

MOST = 9_007_199_254_740_991


def budget_id(budget: str | UUID, namespace: str) -> UUID:
    """The id of a budget given by name or id. Raises `InvalidNamespace`, and `BudgetNotFound` for an invalid name."""
    try:
        return ids.resolve_named_id("budget", namespace, str(budget))
    except InvalidName:
        raise not_found(budget, namespace) from None


def not_found(budget: str | UUID, namespace: str) -> BudgetNotFound:
    """The error for a budget that does not exist, with the name the caller used: SQL knows only the id."""
    return BudgetNotFound(
        f"budget {shown(str(budget))} does not exist in namespace {shown(namespace)}; check its name and namespace, "
        "or create it with create_budget"
    )


@contextmanager
def named(budget: str | UUID, namespace: str) -> Iterator[UUID]:
    """The id of a budget given by name or id; a `BudgetNotFound` raised inside shows that name."""
    try:
        yield budget_id(budget, namespace)
    except BudgetNotFound:
        raise not_found(budget, namespace) from None


def amounts_text(amounts: object, refusal: type[Invalid] = InvalidUsage, **fields: object) -> str:
    """Encode amounts as JSON; SQL validates them, except for values that Postgres could not read."""
    if not isinstance(amounts, Mapping):
        raise refusal(
            f"amounts {shown(str(amounts))} are invalid; use a mapping with a whole number per dimension", **fields
        )
    return msgspec.json.encode({_dimension(name, refusal, fields): _plain(n) for name, n in amounts.items()}).decode()


def checked_step(step: tuple[str, int] | None) -> tuple[str, int] | None:
    """Check the place in a journal at which spending is saved, for values that Postgres could not read."""
    match step:
        case None:
            return None
        case (str(name), int(occurrence)) if -1 < occurrence < 2**31:
            return check_text(name, "step name"), occurrence
    raise InvalidName(f"step {shown(str(step))} is invalid; use (name, occurrence), where occurrence counts from 1")


def exhausted(budget: str, answer: Usage | Reserved | Settled) -> BudgetExhausted:
    """Return the exception for a hard breach, for callers that raise instead of checking the outcome."""
    return BudgetExhausted(
        f"budget {shown(budget)} has used {answer.used} and reserved {answer.reserved} of {answer.hard_limit} "
        f"{answer.dimension}, and this amount does not fit; raise or reset the budget",
        budget=budget,
        dimension=answer.dimension,
        used=answer.used,
        reserved=answer.reserved,
        hard_limit=answer.hard_limit,
    )


def _dimension(name: object, refusal: type[Invalid], fields: Mapping[str, object]) -> str:
    if isinstance(name, str):
        return check_text(name, "dimension")
    raise refusal(f"dimension {shown(str(name))} is invalid; use a string", **fields)


def _plain(amount: object) -> object:
    """Make an amount encodable as JSON; invalid values stay invalid, so that SQL refuses them."""
    if isinstance(amount, int) and not isinstance(amount, bool):
        return max(min(amount, MOST + 1), -1)
    if isinstance(amount, float) and amount.is_integer():
        return _plain(int(amount))
    # NaN and infinity too: JSON would write them as null, which is no limit and no amount.
    return amount if isinstance(amount, float) and isfinite(amount) else "not a number"
