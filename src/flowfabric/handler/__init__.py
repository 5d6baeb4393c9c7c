"""Private: the context of a running handler, with its journal, waits, children, approvals and budgets."""
