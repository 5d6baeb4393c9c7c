"""What a handler holds while it runs."""
