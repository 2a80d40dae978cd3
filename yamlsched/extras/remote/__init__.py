"""Executors that hand attempts to an engine: the worker's side, the gateway, and the agent that
runs on the engine.
"""
