"""The tables, and how a database is brought to this version."""
