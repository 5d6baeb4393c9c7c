"""The concepts of the engine: each a pair of files, SQL that decides and Python that calls it."""
