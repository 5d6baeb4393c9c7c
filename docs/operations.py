"""The reference page of the operations of an app: its namespaces, with the signatures of their methods."""

import inspect

from docs import public
from docs.signatures import signatures
from flowfabric.calls.operations import NAMESPACES

PAGE = """# Operations of an app

Do from your code what `ff` does on the command line, without a connection:

```python
await app.lanes.pause("reports", by="ops", reason="the printer is down")
await app.budgets.create("customer-17", hard_limits={"tokens": 1_000_000})
```

A method is the [operation of the engine](engine.md) in its row, on a connection of the app. It has the same parameters,
answers and errors, and the page of the engine explains them. Ids may be given as text, durations as `"10m"`, and
results and payloads as values. After a change the app notifies workers and waiting callers. If the connection was
lost, calls that are safe to repeat are repeated.

In code without `await`, `app.sync()` has the same methods: `app.sync().lanes.pause("reports", by="ops")`. To do several
things in one transaction, call the operations of the engine on [your connection](api.md#appdatabase).
"""


def page() -> str:
    """The page."""
    return "\n".join([PAGE, *(_namespace(name) for name in public.namespaces())])


def _namespace(name: str) -> str:
    kind = public.namespaces()[name]
    [namespace] = [each for each in NAMESPACES if each.name == kind.__name__]
    shown, rows = [], []
    methods = public.members(kind.__name__, kind)
    for (method, function), operation in zip(methods.items(), namespace.operations, strict=True):
        [signature] = signatures(method, function)
        shown.append(signature._replace(name=f"app.{name}.{method}").text.replace("async def ", "await "))
        said = inspect.getdoc(function) or ""
        said = (said if operation.is_by_hand else said.partition("\n\n")[0]).replace("\n\n", " ").replace("\n", " ")
        anchor = operation.function.replace(".", "")
        linked = "" if operation.is_by_hand else f"[{operation.function}](engine.md#{anchor})"
        rows.append(f"| `{method}` | {said} | {linked} |")
    code = "\n".join(shown).replace("builtins.", "")
    table = "\n".join(["| Method | Meaning | Operation |", "|---|---|---|", *rows])
    return f"## app.{name}\n\n{kind.__doc__}\n\n```python\n{code}\n```\n\n{table}\n"
