"""The pool of shared child processes: each executes many attempts at once, as coroutines of one event loop."""
