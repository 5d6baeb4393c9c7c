"""Sync code, as in Django or Flask: views that submit work and read its state without `await`.

`ff dev examples/sync_views.py:app` in one terminal, `python examples/sync_views.py` in another.
"""

from flowfabric import App, SyncApp, SyncContext

app = App()


def flow() -> SyncApp:
    """Open the app at its first use, after a web server has forked, and keep it open until the process ends."""
    return app.sync().open()


@app.task(lane="mail", retries=5, backoff="1m")
def send_welcome(ctx: SyncContext, address: str) -> str:  # sync handlers run in threads
    text = ctx.step("write", lambda: f"Welcome, {address.partition('@')[0]}!")
    return f"sent to {address}: {text}"


def sign_up(address: str) -> str:
    """A view. In Django, call this in `transaction.on_commit` if it depends on rows that the view has written."""
    execution = flow()(send_welcome).with_options(key=f"welcome-{address}").submit(address)
    return str(execution.execution_id)


def progress(execution_id: str) -> str:
    """A view that says what an execution is waiting for."""
    return f"{flow().execution(execution_id).explain().sentence}"


def main() -> None:
    first, again = sign_up("ada@example.org"), sign_up("ada@example.org")
    print("signed up once" if first == again else "signed up twice")
    print(flow().execution(first).result("1m"))
    print(progress(first))


if __name__ == "__main__":
    main()
