"""Every loop of the SQL ends: it runs over rows or a range, or its reason is here."""

import re

from tests.sources import SqlFunction, sql_functions

# All loops that are not a `for … loop` or a `foreach … loop`, and why they end.
ENDS = {
    "_choose": "the priority falls with every pass, and the routes move on within a priority",
    "_first_circular": "a member becomes free at most once",
    "_first_kept_range": "at most `ranges` partitions",
    "_kept_text": "the text gets shorter with every pass",
    "_lock_stripes": "a pass locks one stripe more, or is the last",
    "_add_route": "routes are never deleted, so the second pass finds it",
    "_next_level": "the pair of priority and route falls with every pass",
    "_open_turns": "every pass starts behind the last route of the pass before it",
    "_serve": "a pass that takes no tickets leaves no routes",
    "_serve_shares": "a route that supplies less than its share is not asked again",
    "_serve_within": "every pass drops the routes that it has asked",
    "_settle_flows": "a member is skipped or cancelled at most once",
    "_shares": "a pass that hands out nothing is the last",
    "read_tree": "a pass that adds no execution is the last, and it adds at most `take`",
    "advance_horizon": "every pass moves by 20,000 ids or stops",
    "create_flow": "a pass is repeated only if retention has removed the key since its insert",
    "create_schedule": "a pass is repeated only if the schedule was deleted since its insert",
}


def has_other_loops(function: SqlFunction) -> bool:
    starts = [found.start() for found in re.finditer(r"(?<!end )\bloop\b", function.code)]
    before = (re.split(r";|\bbegin\b|\bloop\b", function.code[:start])[-1] for start in starts)
    return any(not re.search(r"\bfor(?:each)?\b", words) for words in before)


def test_every_loop_over_neither_rows_nor_a_range_is_known_to_end() -> None:
    assert {function.name for function in sql_functions() if has_other_loops(function)} == ENDS.keys()
