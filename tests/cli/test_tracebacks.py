"""Tracebacks as people read them."""

from datetime import UTC, datetime

from flowfabric.cli import tracebacks
from flowfabric.model import Attempt, Failure

OURS = """\
  File "/usr/lib/python3.13/site-packages/flowfabric/worker/run.py", line 60, in run
    result = await _call(task)
             ^^^^^^^^^^^^^^^^^
"""
THEIRS = """\
  File "/home/ada/flowfabric/shop.py", line 7, in ship
    raise LookupError(order)
"""
HEAD, END = "Traceback (most recent call last):\n", "LookupError: 17"


def attempt(number: int, traceback: str | None) -> Attempt:
    at = datetime(2026, 5, 4, tzinfo=UTC)
    return Attempt(
        number=number,
        type="retry",
        lifecycle="ended_failure",
        worker="w",
        instance="w-1",
        first_epoch=1,
        last_epoch=1,
        started_at=at,
        failure=Failure(class_="transient", traceback=traceback),
    )


def test_our_frames_are_folded_into_one_line_and_those_of_the_program_stay() -> None:
    shown = tracebacks.folded(HEAD + OURS * 4 + THEIRS + OURS + THEIRS + END)

    four, one = "  … 4 frames of flowfabric\n", "  … 1 frame of flowfabric\n"
    assert shown == HEAD + four + THEIRS + one + THEIRS + END


def test_frames_in_a_chain_and_in_a_group_are_folded_where_they_are() -> None:
    grouped = "".join(f"    | {line}\n" for line in (HEAD + OURS + THEIRS + END).splitlines())
    shown = tracebacks.folded(HEAD + OURS + END + "\n\nDuring handling:\n\n" + grouped)

    assert shown.splitlines()[:4] == [HEAD.strip(), "  … 1 frame of flowfabric", END, ""]
    assert "    |   … 1 frame of flowfabric" in shown.splitlines()
    assert "site-packages" not in shown
    assert shown.count(END) == 2


def test_control_characters_are_escaped_and_a_cut_traceback_is_shown() -> None:
    shown = tracebacks.folded(HEAD + OURS[:60] + '", line 1\n' + "\x1b[2J\r\u202eE: \x00")

    assert shown == HEAD + "  … 1 frame of flowfabric\n" + "\\x1b[2J\n\\u202eE: \\x00"


def test_a_text_that_is_no_traceback_stays_as_it_is() -> None:
    for text in ("", "Traceback: …", "one\n  two\n    three", 'File "'):
        assert tracebacks.folded(text) == text


def test_a_traceback_that_repeats_is_named_and_attempts_without_one_are_left_out() -> None:
    shown = tracebacks.of_attempts([attempt(1, "a"), attempt(2, None), attempt(3, "a"), attempt(4, "b")])

    assert shown == "attempt 1:\na\n\nattempt 3: the same traceback as attempt 1\n\nattempt 4:\nb"
    assert tracebacks.of_attempts([]) == ""
