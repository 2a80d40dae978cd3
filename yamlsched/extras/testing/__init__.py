"""Handlers and commands without a worker: ``yamlsched.testing`` for tests, and ``yamlsched
invoke``.
"""
