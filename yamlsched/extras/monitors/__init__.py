"""Monitoring services that raise an alarm when a signal does not arrive: heartbeat URLs and
Sentry's cron monitors.
"""
