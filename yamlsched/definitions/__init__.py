"""From the bytes of schedules.yaml to sound jobs, or to every mistake with its place.

``load.load`` is the way in. Nothing is imported here, so that ``definitions.job`` costs neither YAML nor the schema.
"""
