"""Private: the migrations, and the code that applies them to a database."""
