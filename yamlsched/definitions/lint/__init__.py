"""Warnings about what is valid but probably not intended. The entry point is ``check.check``."""
