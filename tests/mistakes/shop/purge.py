def run(older_than_days: int = 30) -> None:
    """Stands for a handler whose parameters all have defaults."""
