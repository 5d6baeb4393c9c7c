"""An adapter per peer, in the file of its name; only the Python of that peer imports it."""
