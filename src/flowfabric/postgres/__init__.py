"""Private: connections to Postgres, calls of its functions, notifications and the embedded server."""
