"""yamlsched: jobs in schedules.yaml, state in PostgreSQL, one crontab line."""

__version__ = "0.1.0"
