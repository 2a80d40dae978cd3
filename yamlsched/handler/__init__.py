"""What a handler gets: its run, effects that happen once, and the database sessions behind both."""
