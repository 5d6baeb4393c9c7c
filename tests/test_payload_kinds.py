"""Kinds: a value is the same in the run that made it and in every later one, or it is refused when it is saved."""

import math
from collections import defaultdict
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any, Generic, Literal, NamedTuple, NewType, NoReturn, NotRequired, TypedDict, TypeVar
from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowfabric import payloads
from flowfabric.errors import InvalidBody
from flowfabric.ids import ExecutionId, FlowId, mint_execution_id, mint_flow_id
from flowfabric.payloads import Arguments

T = TypeVar("T")
OrderId = NewType("OrderId", int)


class Colour(Enum):
    RED = 1
    BLUE = 2


class Mixed(Enum):
    RED = 1
    BLUE = "blue"


class Shade(StrEnum):
    LIGHT = "light"


@dataclass
class Draft:
    title: str
    pages: list[int] = field(default_factory=list)


@dataclass
class Tree:
    value: Any
    kids: list["Tree"] = field(default_factory=list)


@dataclass
class Boxed(Generic[T]):
    held: T


class Point(NamedTuple):
    x: int
    note: Any = None


class Row(TypedDict):
    id: int
    extra: NotRequired[Any]


class Order(msgspec.Struct):
    at: datetime
    lines: tuple[Draft, ...] = ()


def kept(value: object, kind: Any) -> Any:
    """The value in the first run, which must be equal to that of every later run."""
    encoded, first = payloads.keep(value, kind, "use {}")
    later = payloads.decode(encoded, kind)
    assert later == first
    assert type(later) is type(first)
    return first


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
moments = st.datetimes(timezones=st.just(UTC))
others = st.one_of(
    st.just(Draft("x")),
    st.just(Colour.RED),
    st.just(Shade.LIGHT),
    st.just(Point(1)),
    st.just(defaultdict(int, a=1)),
    st.dictionaries(st.integers(), st.integers(), min_size=1, max_size=2),
    st.tuples(st.integers()),
    st.frozensets(st.integers()),
    st.binary(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.uuids(),
    moments,
)
typed: st.SearchStrategy[tuple[Any, Any]] = st.one_of(
    *(
        st.tuples(st.just(kind), values)
        for kind, values in {
            Any: plain,
            object: plain,
            int: st.integers(),
            str: st.text(),
            bool: st.booleans(),
            float: st.floats(allow_nan=False, allow_infinity=False),
            None: st.none(),
            bytes: st.binary(),
            UUID: st.uuids(),
            datetime: moments,
            date: st.dates(),
            timedelta: st.timedeltas(timedelta(days=-9_999), timedelta(days=9_999)),
            Decimal: st.decimals(allow_nan=False, allow_infinity=False),
            Colour: st.sampled_from(Colour),
            OrderId: st.integers(),
            Literal["a", 1]: st.sampled_from(["a", 1]),
            Draft: st.builds(Draft, st.text(), st.lists(st.integers())),
            Tree: st.recursive(st.builds(Tree, plain), lambda kids: st.builds(Tree, plain, st.lists(kids, max_size=2))),
            Boxed[int]: st.builds(Boxed, st.integers()),
            Boxed[Any]: st.builds(Boxed, plain),
            Point: st.builds(Point, st.integers(), plain),
            Row: st.fixed_dictionaries({"id": st.integers()}, optional={"extra": plain}),
            Order: st.builds(Order, moments, st.tuples(st.builds(Draft, st.text()))),
            ExecutionId: st.builds(mint_execution_id),
            FlowId: st.builds(mint_flow_id),
        }.items()
    )
)


LIST: Any = list
DICT: Any = dict
TUPLE: Any = tuple


def containing(inner: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    """Containers of values of a type, with the type of the container."""
    return st.one_of(
        inner.map(lambda pair: (LIST[pair[0]], [pair[1]] * 2)),
        inner.map(lambda pair: (DICT[str, pair[0]], {"a": pair[1]})),
        inner.map(lambda pair: (TUPLE[pair[0], ...], (pair[1],))),
        inner.map(lambda pair: (TUPLE[int, pair[0]], (1, pair[1]))),
        inner.map(lambda pair: (make_dataclass("Made", [("held", pair[0])]), pair[1])).map(
            lambda made: (made[0], made[0](made[1]))
        ),
    )


@given(st.recursive(typed, containing, max_leaves=4))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_value_of_the_annotated_type_is_the_same_in_every_run(pair: tuple[Any, Any]) -> None:
    kind, value = pair

    first = kept(value, kind)

    assert first == value
    assert type(first) is type(value)


@given(plain)
def test_plain_json_needs_no_type(value: object) -> None:
    assert kept(value, Any) == value
    assert kept([value], list) == [value]
    assert kept({"a": value}, dict[str, Any] | None) == {"a": value}


@pytest.mark.parametrize("kind", [Any, object, list, list[Any], dict, dict[str, Any], Tree, Boxed, Point, Row, T])
@given(value=others)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_other_values_are_refused_where_the_type_is_unknown(kind: Any, value: object) -> None:
    inside = {
        list: [value], list[Any]: ["a", value], dict: {"a": value}, dict[str, Any]: {"a": {"b": [value]}},
        Tree: Tree(1, [Tree(value)]), Boxed: Boxed(value), Point: Point(1, value), Row: Row(id=1, extra=value),
    }.get(kind, value)  # fmt: skip

    with pytest.raises(InvalidBody, match="its type is unknown"):
        payloads.keep(inside, kind, "use {}")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Draft("x"), "a value of type Draft would be read back as plain JSON, because its type is unknown; use Draft"),
        ((1, 2), "a value of type tuple would be .*; use tuple"),
        ({"a": [0, Draft("x")]}, r"a value of type Draft at `\$\.a\[1\]` would be .*; use TYPE"),
        ([{1: 2}], r"a key of type int at `\$\[0\]` would be .*; use TYPE"),
    ],
)
def test_a_refusal_says_where_the_value_is_and_which_type_would_help(value: object, said: str) -> None:
    with pytest.raises(InvalidBody, match=f"cannot be saved as it is: {said}"):
        payloads.keep(value, Any, "use {}")


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (3, str, "does not match its type str: Expected `str`, got `int`"),
        (None, int, "does not match its type int: Expected `int`, got `null`"),
        ({"title": 3}, Draft, "does not match its type Draft: .*title"),
        ([Draft("x"), Order(datetime.now(UTC))], list[Draft], r"does not match its type list\[.*Draft\]"),
        ("text", None, "does not match its type None"),
        (1, Literal[2], "does not match"),
    ],
)
def test_a_value_of_another_type_than_annotated_is_refused(value: object, kind: Any, said: str) -> None:
    with pytest.raises(InvalidBody, match=said):
        payloads.keep(value, kind, "use {}")


def test_the_first_run_gets_the_annotated_type_too() -> None:
    assert kept((1, 2), list[int]) == [1, 2]
    assert type(kept(1, float)) is float
    assert kept(Shade.LIGHT, str) == "light"
    assert type(kept(Shade.LIGHT, str)) is str
    assert math.isclose(kept(2, float | None), 2)


def test_a_list_that_the_function_keeps_is_not_the_list_that_the_handler_gets() -> None:
    cached = [1]
    first = kept(cached, Any)
    cached.append(2)

    assert first == [1]


@pytest.mark.parametrize("kind", [complex, list[complex], Draft | Order, Mixed, "Nowhere"])
def test_a_type_that_cannot_be_read_from_json_is_refused_before_anything_runs(kind: Any) -> None:
    with pytest.raises(InvalidBody, match=r"which cannot be saved: .*; use another type"):
        payloads.check_kind(kind, "the result of step 'x'")


def test_a_function_that_never_returns_has_a_type() -> None:
    assert payloads.check_kind(NoReturn, "the result") is NoReturn


def test_pydantic_models_are_the_same_in_every_run() -> None:
    pydantic = pytest.importorskip("pydantic")
    invoice = pydantic.create_model("Invoice", amount=(Decimal, ...), at=(datetime, ...), tags=(set[str], ...))
    given_ = invoice(amount=Decimal("1.10"), at=datetime(2030, 1, 1, tzinfo=UTC), tags={"a"})

    assert kept([given_], list[invoice]) == [given_]  # type: ignore[valid-type]
    with pytest.raises(InvalidBody, match="use Invoice"):
        payloads.keep(given_, Any, "use {}")


def test_an_id_in_a_payload_is_written_as_the_text_people_copy() -> None:
    execution_id, flow_id = mint_execution_id(), mint_flow_id()
    foreign = ExecutionId(flow_id.partition, uuid4())

    assert payloads.encode({"id": execution_id}) == f'{{"id":"{execution_id}"}}'.encode()
    assert kept([execution_id, foreign], list[ExecutionId]) == [execution_id, foreign]
    assert kept(flow_id, FlowId | None) == flow_id
    with pytest.raises(InvalidBody, match="id 'x' is not a UUID"):
        payloads.keep("x", ExecutionId, "")


def test_arguments_are_checked_where_their_type_is_unknown() -> None:
    def handler(draft, options: dict[str, Any], parent: ExecutionId | None = None) -> None: ...  # type: ignore[no-untyped-def]

    arguments = Arguments(handler, None)
    parent = mint_execution_id()

    encoded = arguments.encode((["x", 1], {"a": [1]}, parent), {})
    assert arguments.decode(encoded) == {"draft": ["x", 1], "options": {"a": [1]}, "parent": parent}
    assert arguments.schema()["properties"]["parent"]["anyOf"][0]["type"] in ("string", "null")  # type: ignore[index]
    with pytest.raises(InvalidBody, match=r"type Draft at `\$\.draft` .*; annotate the parameter"):
        arguments.encode((Draft("x"), {}), {})
    with pytest.raises(InvalidBody, match=r"type datetime at `\$\.options\.at`"):
        arguments.encode((1, {"at": datetime.now(UTC)}), {})
