"""Payloads: a value is decoded to the same value, or refused when it is encoded."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Annotated, Any, Self
from uuid import UUID

import msgspec
import pytest
from msgspec import Meta

from flowfabric import payloads
from flowfabric.errors import InvalidBody
from flowfabric.payloads import Arguments


@dataclass
class Point:
    x: int
    y: int = 0


class Box(msgspec.Struct):
    corners: list[Point]
    name: str | None = None


class Colour(Enum):
    RED = "red"


class Model:
    """An object with the methods of a pydantic model."""

    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.amount == self.amount

    __hash__ = None  # type: ignore[assignment]

    def model_dump(self, *, mode: str) -> dict[str, object]:
        assert mode == "json"
        return {"amount": self.amount}

    @classmethod
    def model_validate(cls, given: Any) -> Self:
        if not isinstance(given, dict) or not isinstance(given.get("amount"), int):
            raise ValueError("amount is a whole number")
        return cls(given["amount"])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 2**70),
        (float, 0.1),
        (str, "naïve \0 ✓"),
        (bytes, b"\x00\xff"),
        (datetime, datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
        (date, date(2030, 1, 2)),
        (timedelta, timedelta(days=1, microseconds=5)),
        (Decimal, Decimal("1.10")),
        (UUID, UUID(int=7)),
        (Colour, Colour.RED),
        (Point, Point(1, 2)),
        (Box, Box([Point(1), Point(2, 3)])),
        (Model, Model(3)),
        (list[Model], [Model(1), Model(2)]),
        (Model | None, None),
        (Model | None, Model(4)),
        (dict[int, set[str]], {1: {"a"}}),
        (tuple[int, str], (1, "a")),
        (int | str | None, "a"),
        (type(None), None),
        (list[object], [1, "a", {"b": None}]),
    ],
)
def test_a_value_survives_encoding_and_decoding(kind: Any, value: object) -> None:
    def handler(given, also=None):  # type: ignore[no-untyped-def]
        pass

    handler.__annotations__ = {"given": kind}
    arguments = Arguments(handler, None)

    assert arguments.decode(arguments.encode((value,), {})) == {"given": value, "also": None}
    assert payloads.decode(payloads.encode(value), kind) == value


def test_a_real_pydantic_model_survives_encoding_and_decoding() -> None:
    pydantic = pytest.importorskip("pydantic")
    order = pydantic.create_model("Order", amount=(int, ...), at=(datetime, ...))
    given = order(amount=3, at=datetime(2030, 1, 1, tzinfo=UTC))

    assert payloads.decode(payloads.encode([given]), list[order]) == [given]  # type: ignore[valid-type]


def test_defaults_come_from_the_handler_and_are_copied_each_time() -> None:
    def handler(a: int, b: list[int] = [1], *, c: str, d: Point = Point(5)) -> None:  # noqa: B006, B008
        pass

    arguments = Arguments(handler, None)
    first = arguments.decode(arguments.encode((1,), {"c": "x"}))
    first["b"].append(2)

    assert arguments.decode(b'{"a": 1, "c": "x"}') == {"a": 1, "b": [1], "c": "x", "d": Point(5)}


def test_arguments_that_do_not_match_the_signature_are_not_encoded() -> None:
    def handler(topic: str) -> None: ...

    arguments = Arguments(handler, None)
    with pytest.raises(TypeError, match="'topic'"):
        arguments.encode((), {})
    with pytest.raises(TypeError, match="'colour'"):
        arguments.encode(("a",), {"colour": "red"})


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b'{"box": {"corners": [{"x": 1}, {"x": "two"}]}}', r"Expected `int`, got `str` - at `\$.box.corners\[1\].x`"),
        (b'{"box": {"corners": []}, "extra": 1}', "unknown field `extra`"),
        (b"{}", "missing required field `box`"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"box": {"corners": []}, "small": 99}', r"Expected `int` <= 9 - at `\$.small`"),
        (b'{"box": {"corners": []}, "model": {"amount": "x"}}', r"amount is a whole number - at `\$.model`"),
    ],
)
def test_a_value_of_the_wrong_type_is_reported_with_its_path(payload: bytes, said: str) -> None:
    def handler(box: Box, small: Annotated[int, Meta(le=9)] = 1, model: Model | None = None) -> None: ...

    with pytest.raises(msgspec.ValidationError, match=said):
        Arguments(handler, None).decode(payload)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "NaN"),
        ({"a": [1.0, float("inf")]}, "infinity"),
        (Box([Point(float("-inf"))]), "infinity"),  # type: ignore[arg-type]
        (object(), "object"),
        ({(1, 2): 3}, "tuple"),
        ("\ud800", "surrogates not allowed"),
    ],
)
def test_a_value_that_json_cannot_represent_is_refused(value: object, said: str) -> None:
    with pytest.raises(InvalidBody, match=f"JSON: .*{said}") as refused:
        payloads.encode(value)

    assert refused.value.fields == {"field": "payload"}


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)

    with pytest.raises(InvalidBody, match="recursion"):
        payloads.encode(endless)


def test_none_among_numbers_is_encoded_as_null() -> None:
    assert payloads.encode([1.5, None]) == b"[1.5,null]"


def test_the_return_type_of_a_callable_is_found() -> None:
    async def later(a: int) -> Point: ...  # type: ignore[empty-body]

    class Callable:
        def __call__(self) -> Box: ...  # type: ignore[empty-body]

    assert payloads.returned(later) is Point
    assert payloads.returned(partial(partial(later), 1)) is Point
    assert payloads.returned(Callable()) is Box
    assert payloads.returned(Decimal) is Decimal
    assert [payloads.returned(f) for f in (lambda: 1, len)] == [Any, Any]


def test_an_annotation_that_cannot_be_resolved_is_refused_immediately() -> None:
    def handler(a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(TypeError, match=r"handler.*'Nowhere'"):
        Arguments(handler, None)


def test_an_ambiguous_union_is_refused_immediately() -> None:
    def handler(a: Point | Box | datetime | str) -> None: ...

    with pytest.raises(TypeError, match=r"handler.*Type unions"):
        Arguments(handler, None)
