"""Notifications through the library Apprise: what was noted for the targets of schedules.yaml, as
messages.
"""
