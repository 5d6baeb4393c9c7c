"""Plain sync code, as in Django or Flask: views that submit work and look at it without awaiting anything.

`ff dev examples/sync_views.py:app` in one terminal, `python examples/sync_views.py` in another.
"""

import atexit
import functools
from contextlib import ExitStack

from flowfabric import App, Blocking, Context

app = App()
opened = ExitStack()


@functools.cache
def flow() -> Blocking[App]:
    """The app, open from its first use to the end of the process: after a web server has forked, not before."""
    atexit.register(opened.close)
    return opened.enter_context(app.sync())


@app.task(lane="mail", retries=5, backoff="1m")
def send_welcome(ctx: Blocking[Context], address: str) -> str:  # handlers may be sync, too: they run in threads
    text = ctx.step("write", lambda: f"Welcome, {address.partition('@')[0]}!")
    return f"sent to {address}: {text}"


def sign_up(address: str) -> str:
    """A view. In Django, call this in `transaction.on_commit` when it follows from rows of your own."""
    execution = flow()(send_welcome).with_options(key=f"welcome-{address}").submit(address)
    return str(execution.execution_id)


def progress(execution_id: str) -> str:
    """Another view."""
    return f"{flow().execution(execution_id).explain().sentence}"


def main() -> None:
    first, again = sign_up("ada@example.org"), sign_up("ada@example.org")
    print("signed up once" if first == again else "signed up twice")
    print(flow().execution(first).result("1m"))
    print(progress(first))


if __name__ == "__main__":
    main()
