"""The pools of forked child processes."""
