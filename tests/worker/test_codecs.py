"""Codecs: everything that programs store is encoded, and everything that they read is decoded."""

import secrets
import zlib
from dataclasses import dataclass
from typing import Any

import pytest

from flowfabric import AesGcm, App, ChildFailed, Context, ExecutionFailed
from flowfabric.engine import executions, steps
from flowfabric.errors import KeyConflict, PayloadUnreadable
from flowfabric.model import ScheduleChange
from tests.app.scene import TIMEOUT, happens, working
from tests.given import Given

KEY = secrets.token_bytes(32)
SECRET = "4111 1111 1111 1111"


@dataclass
class Card:
    number: str


class Zlib:
    name = "zlib"

    def encode(self, payload: bytes, owner: str) -> bytes:
        return zlib.compress(payload)

    def decode(self, stored: bytes, owner: str) -> bytes:
        return zlib.decompress(stored)


@pytest.fixture
def sealed(database_url: str) -> App:
    return App(url=database_url, codec=AesGcm("2026-11", KEY))


def other(database_url: str, *codecs: Any) -> App:
    """Another program with the same tasks, and these codecs."""
    app = App(url=database_url, codec=codecs)
    pays(app)
    return app


tokens: list[str] = []


def pays(app: App) -> Any:
    tokens.clear()

    @app.task
    async def charge(card: Card) -> Card:
        if card.number == "":
            raise ValueError("no number")
        return card

    @app.task
    async def pay(ctx: Context, card: Card) -> list[Card]:
        saved = await ctx.step("save", lambda: card, returns=Card)
        child = await ctx.submit(charge, saved)
        tokens.append((await ctx.create_waitpoint("go")).token)
        answer = await ctx.wait_for_signal("go")
        assert answer is not None
        assert answer.payload == f'{{"card":"{SECRET}"}}'.encode()
        return [saved, await child.result()]

    return pay


async def stored(given: Given) -> list[bytes]:
    """Everything that could contain arguments, results or signals."""
    rows = [
        *await given.rows("select payload as a, result as b from flowfabric.executions"),
        *await given.rows("select result as a, null::bytea as b from flowfabric.steps where name not like 'submit:%'"),
        *await given.rows("select payload as a, null::bytea as b from flowfabric.signals"),
    ]
    return [value for row in rows for value in (row["a"], row["b"]) if value is not None]


async def test_nothing_that_a_program_stores_can_be_read_without_the_key(sealed: App, given: Given) -> None:
    pay = pays(sealed)

    async with working(sealed):
        execution = await pay.submit(Card(SECRET))
        await happens(execution, "execution_suspended")
        await execution.signal("go", {"card": SECRET}, token=tokens[0])
        assert await execution.result(TIMEOUT) == [Card(SECRET), Card(SECRET)]
    assert len(await stored(given)) == 8
    assert [value for value in await stored(given) if SECRET.encode() in value] == []


async def test_results_are_passed_along_a_flow(sealed: App, given: Given) -> None:
    @sealed.task
    async def load(number: str) -> Card:
        return Card(number)

    @sealed.task
    async def save(card: Card, note: str) -> str:
        return f"{card.number} {note}"

    flow = sealed.flow("cards")
    loaded = flow.add(load, SECRET)
    saved = flow.add(save, loaded, "kept")
    fed = flow.feed(load, flow.add(save, loaded, note="x").any_of())
    del fed
    async with working(sealed):
        handle = await flow.submit()
        assert await handle[saved].result(TIMEOUT) == f"{SECRET} kept"
    assert [value for value in await stored(given) if SECRET.encode() in value] == []


async def test_a_worker_without_the_codec_leaves_the_execution_to_another(
    database_url: str, sealed: App, given: Given
) -> None:
    charge = other(database_url, AesGcm("2026-11", KEY)).tasks["charge"]
    async with charge.app:
        execution = await charge.submit(Card(SECRET))

    for codecs, said in [
        ([], "encoded by codec 'aes-gcm:2026-11', which this program does not have; its codecs: none; add it"),
        ([AesGcm("2026-11", secrets.token_bytes(32))], "codec 'aes-gcm:2026-11' could not decode .*InvalidTag"),
    ]:
        async with working(other(database_url, *codecs)) as app:
            await happens(app.execution(execution.execution_id), "execution_delayed")
            described = await app.execution(execution.execution_id).describe()
            assert described.counts.attempts == 1
            assert (described.outcome if hasattr(described, "outcome") else None) is None
        del said
        await given.time_passes(minutes=1)
    async with working(other(database_url, AesGcm("2026-11", KEY))) as app:
        assert await app.execution(execution.execution_id, returns=Card).result(TIMEOUT) == Card(SECRET)


async def test_a_result_cannot_be_read_without_the_codec(database_url: str, sealed: App) -> None:
    pays(sealed)
    async with working(sealed):
        execution = await sealed.tasks["charge"].submit(Card(SECRET))
        await execution.result(TIMEOUT)
    async with App(url=database_url) as app:
        said = r"result is encoded by codec 'aes-gcm:2026-11', which this program does not have; its codecs: none"
        with pytest.raises(PayloadUnreadable, match=said) as raised:
            await app.execution(execution.execution_id).result()
    assert raised.value.fields == {"encoding": "aes-gcm:2026-11"}


async def test_keys_and_codecs_can_be_changed_while_work_is_left(database_url: str, given: Given) -> None:
    old, new = AesGcm("2025", secrets.token_hex(32)), AesGcm("2026", KEY)
    handles = []
    for codecs in [(), (Zlib(),), (old,), (new, old)]:
        async with other(database_url, *codecs) as app:
            handles.append(await app.tasks["charge"].submit(Card(SECRET)))

    async with working(other(database_url, new, old, Zlib())) as app:
        for handle in handles:
            assert await app.execution(handle.execution_id, returns=Card).result(TIMEOUT) == Card(SECRET)
    labels = await given.rows("select encoding, result_encoding from flowfabric.executions order by created_at")
    assert [tuple(row.values()) for row in labels] == [
        (None, "aes-gcm:2026"),
        ("zlib", "aes-gcm:2026"),
        ("aes-gcm:2025", "aes-gcm:2026"),
        ("aes-gcm:2026", "aes-gcm:2026"),
    ]


async def test_a_payload_that_was_moved_is_not_decrypted(sealed: App, given: Given) -> None:
    pays(sealed)
    async with working(sealed):
        first = await sealed.tasks["charge"].submit(Card(SECRET))
        second = await sealed.tasks["charge"].submit(Card("mine"))
        assert await first.result(TIMEOUT) == Card(SECRET)
        assert await second.result(TIMEOUT) == Card("mine")
        await given.conn.execute(
            "update flowfabric.executions e set result = f.result from flowfabric.executions f "
            "where e.id = $1 and f.id = $2",
            *(second.execution_id.uuid, first.execution_id.uuid),
        )
        with pytest.raises(PayloadUnreadable, match="could not decode"):
            await second.result()
        await given.conn.execute(
            "update flowfabric.executions set result = payload where id = $1", first.execution_id.uuid
        )
        with pytest.raises(PayloadUnreadable, match="could not decode"):
            await first.result()


async def test_a_key_with_the_same_arguments_is_a_duplicate_also_under_another_key(database_url: str) -> None:
    old, new = AesGcm("2025", secrets.token_bytes(32)), AesGcm("2026", KEY)
    ids = []
    for codecs in [(), (old,), (new, old), (new, old)]:
        async with other(database_url, *codecs) as app:
            charge = app.tasks["charge"].with_options(key="once")
            ids.append((await charge.submit(Card(SECRET))).execution_id)
            [many] = await charge.submit_many([(Card(SECRET),)])
            ids.append(many.execution_id)
            async with app.database.connection() as conn, conn.transaction():
                ids.append((await charge.submit_in(conn, Card(SECRET))).execution_id)
                with pytest.raises(KeyConflict):
                    await charge.submit_in(conn, Card("another"))
            with pytest.raises(KeyConflict) as refused:
                await charge.submit(Card("another"))
            assert refused.value.fields["execution_id"] == str(ids[0])
    assert set(ids) == {ids[0]}


async def test_a_program_without_the_key_cannot_tell_whether_arguments_are_the_same(
    database_url: str, sealed: App
) -> None:
    pays(sealed)
    async with sealed:
        await sealed.tasks["charge"].with_options(key="once").submit(Card(SECRET))
    async with other(database_url) as app:
        with pytest.raises(KeyConflict):
            await app.tasks["charge"].with_options(key="once").submit(Card(SECRET))


async def test_a_schedule_is_encoded_and_does_not_change_when_it_is_declared_again(sealed: App, given: Given) -> None:
    pays(sealed)
    async with working(sealed):
        made = [await sealed.schedules.create("hourly", "charge", {"card": Card(SECRET)}, every="1h") for _ in range(2)]
        assert made == [ScheduleChange.CREATED, ScheduleChange.NOOP]
        changed = await sealed.schedules.change("hourly", "charge", {"card": Card(SECRET)})
        assert changed is ScheduleChange.NOOP
        fired = await sealed.schedules.fire("hourly", by="ada")
        assert await sealed.execution(str(fired.execution_id), returns=Card).result(TIMEOUT) == Card(SECRET)
    [row] = await given.rows("select payload, options->>'encoding' as label from flowfabric.schedules")
    assert (SECRET.encode() in row["payload"], row["label"]) == (False, "aes-gcm:2026-11")


async def test_an_override_is_encoded_and_safe_to_repeat(sealed: App, given: Given) -> None:
    pays(sealed)
    async with sealed:
        execution = await sealed.tasks["charge"].submit(Card(SECRET))
        for _ in range(2):
            await execution.override("success", Card(SECRET), reason="by hand", by="ada")
        assert await execution.result(TIMEOUT) == Card(SECRET)
    assert [value for value in await stored(given) if SECRET.encode() in value] == []


async def test_failures_stay_readable(sealed: App) -> None:
    pays(sealed)

    @sealed.task
    async def parent(ctx: Context) -> str:
        try:
            await (await ctx.submit("charge", card={"number": ""})).result()
        except ChildFailed as failed:
            return str(failed.failure and failed.failure.reason)
        return "none"

    async with working(sealed):
        assert "no number" in await (await parent.submit()).result(TIMEOUT)


async def test_a_codec_that_fails_fails_the_run_and_not_the_worker(database_url: str) -> None:
    class Broken(Zlib):
        def encode(self, payload: bytes, owner: str) -> bytes:
            if owner.endswith("/result"):
                raise ConnectionError("the key service is down")
            return super().encode(payload, owner)

    async with working(other(database_url, Broken())) as app:
        with pytest.raises(ExecutionFailed, match="the key service is down"):
            await (await app.tasks["charge"].submit(Card("1"))).result(TIMEOUT)


async def test_what_is_stored_says_how_it_was_encoded(sealed: App, given: Given) -> None:
    @sealed.task
    async def count(ctx: Context) -> int:
        return await ctx.step("a", lambda: 1)

    async with working(sealed):
        execution = await count.submit()
        await execution.result(TIMEOUT)
    described = await executions.describe(given.conn, execution.execution_id, payload=True, result=True)
    [entry] = await steps.read_journal(given.conn, execution.execution_id)
    assert {described.encoding, described.result_encoding, entry.encoding} == {"aes-gcm:2026-11"}
