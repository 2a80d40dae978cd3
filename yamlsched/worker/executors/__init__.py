"""Executors: where the attempts of runs are executed."""
