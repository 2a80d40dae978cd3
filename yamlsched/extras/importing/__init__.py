"""Schedules of other schedulers as schedules.yaml. Reads text; executes, imports and unpickles
nothing.
"""
