"""FlowFabric: durable execution for Python on Postgres alone."""
