"""Queues with ``mode: async``: an executor whose child processes execute many attempts as coroutines of
one event loop.
"""
