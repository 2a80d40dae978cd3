"""The pool of forked child processes, in which handlers and commands are executed."""
