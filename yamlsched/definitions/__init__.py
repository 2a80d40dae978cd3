"""From the bytes of schedules.yaml to valid jobs, or to every error with its place.

``load.load`` is the way in. Nothing is imported here, so that ``definitions.job`` costs neither YAML nor the schema.
"""
