"""Reading: ranges of a stream, and what is new in many streams."""

from collections.abc import Collection, Sequence
from itertools import groupby

from flowfabric import calls, cursors
from flowfabric.errors import ExecutionNotFound, FlowFabricError, InvalidLimit
from flowfabric.ids import ExecutionId, expect_id
from flowfabric.model import Frame, FrameKind, FrameMode, FramePage, Tail
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection, Row

MOST_FRAMES = 10_000


async def read_frames(
    conn: Connection,
    execution_id: ExecutionId,
    *,
    attempt: int | None = None,
    start: str = "start",
    end: str = "end",
    limit: int = 100,
    kinds: Collection[str] | None = None,
) -> FramePage:
    """Read the frames of an attempt, by default the current one, in a range of ids; both ends are inclusive.

    `start` and `end` are `start`, `end`, a millisecond, or the id of a frame. A page has at most 4 MiB; if more frames
    follow, `next` is where to start again. A stream without frames is empty. Raises `ExecutionNotFound`,
    `InvalidCursor`, `InvalidLimit`.
    """
    from_ms, from_seq = cursors.parse_frame_bound(start, is_upper=False)
    to_ms, to_seq = cursors.parse_frame_bound(end, is_upper=True)
    found = await call.rows(
        conn,
        "read_frames",
        **calls.about(execution_id),
        attempt=attempt,
        from_ms=from_ms,
        from_seq=from_seq,
        to_ms=to_ms,
        to_seq=to_seq,
        take=_take(limit),
        kinds=None if kinds is None else [str(kind) for kind in kinds],
    )
    return _page(found)


async def tail_frames(conn: Connection, tails: Sequence[Tail], *, limit: int = 50) -> list[FramePage | FlowFabricError]:
    """Read what follows in each of many streams, at most `limit` frames of each; does not wait for more.

    Together the pages have at most 4 MiB; `next` of a page says that its stream has more now. Raises `InvalidLimit`;
    the error of a tail is `ExecutionNotFound` or `InvalidCursor`.
    """
    take = _take(limit)

    def read(tail: Tail) -> tuple[Tail, int, int]:
        expect_id(ExecutionId, tail.execution_id, "execution id")
        return tail, *cursors.parse_frame_cursor(tail.after)

    async def send(asked: Sequence[tuple[Tail, int, int]]) -> list[FramePage | FlowFabricError]:
        found = await call.rows(
            conn,
            "tail_frames",
            partitions=[tail.execution_id.partition for tail, _, _ in asked],
            ids=[tail.execution_id.uuid for tail, _, _ in asked],
            attempts=[tail.attempt for tail, _, _ in asked],
            afters_ms=[ms for _, ms, _ in asked],
            afters_seq=[seq for _, _, seq in asked],
            best_efforts=[tail.best_effort for tail, _, _ in asked],
            take=take,
        )
        pages = [list(rows) for _, rows in groupby(found, lambda row: row["item"])]
        return [_tail_page(rows, tail) for rows, (tail, _, _) in zip(pages, asked, strict=True)]

    return await calls.each(tails, read, send)


async def find_valid_frames(conn: Connection, execution_id: ExecutionId) -> dict[int, str]:
    """Find what stays valid of attempts that others have followed: by attempt, the id of its last valid frame.

    That is the last frame before the last step or wait that was saved by the end of the attempt: the next attempt does
    not repeat what comes before it. An attempt without such a frame is missing.
    """
    found = await call.rows(conn, "find_valid_frames", **calls.about(execution_id))
    return {row["attempt"]: row["frame_id"] for row in found}


def _take(limit: int) -> int:
    if not isinstance(limit, int):
        raise InvalidLimit(f"limit {limit!r:.82} is invalid; use 1 to 10,000")
    return max(min(limit, MOST_FRAMES + 1), 0)


def _tail_page(rows: Sequence[Row], tail: Tail) -> FramePage | FlowFabricError:
    if rows[0]["latest"] is None:
        return ExecutionNotFound(f"execution {tail.execution_id} does not exist, or it was removed")
    return _page(rows)


def _page(rows: Sequence[Row]) -> FramePage:
    first = rows[0]
    frames = [_frame(row) for row in rows if row["frame_id"] is not None]
    after = cursors.next_frame_id(frames[-1].id) if frames else "0-0"
    return FramePage(
        frames=frames,
        attempt=first["attempt"],
        latest=first["latest"],
        has_ended=first["has_ended"],
        closed_at=first["closed_at"],
        closed_reason=first["closed_reason"],
        trimmed_to=next((row["trimmed_to"] for row in rows if row["trimmed_to"] is not None), None),
        next=after if first["more"] else None,
    )


def _frame(row: Row) -> Frame:
    return Frame(
        id=row["frame_id"],
        attempt=row["attempt"],
        kind=FrameKind(row["kind"]),
        type=row["frame_type"],
        at=row["at"],
        payload=row["payload"],
        encoding=row["encoding"],
        mode=FrameMode(row["mode"]),
        correlation_id=row["correlation_id"],
        summary_version=row["summary_version"],
    )
