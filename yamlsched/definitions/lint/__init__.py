"""What is allowed and probably not meant: warnings. ``check.check`` is the way in."""
