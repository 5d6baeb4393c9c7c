"""The only door to Postgres."""
