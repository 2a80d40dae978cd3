"""Cron expressions: parsing with exact error positions, and which local dates match. See
docs/cron.md.
"""
