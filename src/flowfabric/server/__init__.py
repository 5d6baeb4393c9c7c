"""Private: the HTTP API: the operations of the engine for programs without access to the database."""
