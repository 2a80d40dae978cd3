"""The pool of forked child processes, the default executor."""
