"""Errors: each has a family, a code and a docstring."""

import copy
import pickle
import re
from http import HTTPStatus

import pytest

from flowfabric import errors
from flowfabric.errors import ChildFailed, ExecutionCancelled, FlowFabricError, LaneNotFound, LeaseLost, NotFound
from flowfabric.ids import mint_execution_id
from flowfabric.model import Failure

FAMILIES: list[type[FlowFabricError]] = list(errors.FAMILIES)
ENDS = [errors.ExecutionFailed, *errors.ExecutionFailed.__subclasses__(), errors.PermanentError]
KNOWN = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FlowFabricError)]
REFUSALS = [kind for kind in KNOWN if kind not in (FlowFabricError, *FAMILIES, *ENDS)]


def test_there_are_seven_families_each_with_its_status() -> None:
    assert {family.__name__: family.status for family in FAMILIES} == {
        "Invalid": 422,
        "Forbidden": 403,
        "NotFound": 404,
        "Conflict": 409,
        "Fenced": 412,
        "Limited": 429,
        "Unavailable": 503,
    }
    assert all(HTTPStatus(family.status) for family in FAMILIES)


@pytest.mark.parametrize("kind", REFUSALS)
def test_an_error_is_in_exactly_one_family(kind: type[FlowFabricError]) -> None:
    assert [kind.__bases__[0]] == [family for family in FAMILIES if issubclass(kind, family)]
    assert len(kind.__bases__) == 1


@pytest.mark.parametrize("kind", [*REFUSALS, *FAMILIES, *ENDS])
def test_an_error_has_a_docstring(kind: type[FlowFabricError]) -> None:
    assert re.fullmatch(r"[A-Z].*\.", kind.__doc__ or "")
    assert "__doc__" in vars(kind)


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_code_maps_to_its_class(kind: type[FlowFabricError]) -> None:
    again = errors.from_code(kind.code, "what is wrong", {"cause": "why"})

    assert type(again) is kind
    assert (again.code, again.message, again.fields) == (kind.code, "what is wrong", {"cause": "why"})
    assert "".join(word.capitalize() for word in kind.code.split("_")) == kind.__name__


def test_every_error_is_known_by_its_code() -> None:
    assert errors.by_code() == {kind.code: kind for kind in REFUSALS}


def test_a_code_without_a_class_is_kept_and_has_the_class_of_its_family() -> None:
    unknown = errors.from_code("not_on_a_sunday", "come back tomorrow", {}, family=404)

    assert type(unknown) is NotFound
    assert str(unknown) == "not_on_a_sunday: come back tomorrow"
    assert NotFound.code == "not_found"
    assert unknown != NotFound("come back tomorrow")
    assert errors.from_code("of_a_new_family", "what now", {}, family=451).status == 422


def test_an_error_is_shown_as_its_code_and_message() -> None:
    assert str(LaneNotFound("no lane 'x'")) == "lane_not_found: no lane 'x'"


@pytest.mark.parametrize("through", [copy.copy, lambda refusal: pickle.loads(pickle.dumps(refusal))])
def test_an_error_survives_copying_and_pickling(through: object) -> None:
    refusal = LeaseLost("gone", cause="expired")
    assert callable(through)

    assert through(refusal) == refusal
    assert hash(through(refusal)) == hash(refusal)
    assert refusal != LeaseLost("gone", cause="revoked")


@pytest.mark.parametrize("through", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_the_failure_of_an_execution_survives_copying_and_pickling(through: object) -> None:
    execution_id, failure = mint_execution_id(), Failure(class_="permanent", reason="no")
    assert callable(through)

    failed = through(ExecutionCancelled("it was cancelled", execution_id, failure))
    assert (type(failed), failed.execution_id, failed.failure) == (ExecutionCancelled, execution_id, failure)
    assert str(failed) == "execution_cancelled: it was cancelled"
    child = through(ChildFailed("it failed", execution_id, "failed", failure))
    assert (child.execution_id, child.state, child.failure) == (execution_id, "failed", failure)
    assert isinstance(child, FlowFabricError)
