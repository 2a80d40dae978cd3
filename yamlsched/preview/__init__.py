"""What an edit of schedules.yaml will do, before it is done. See docs/review.md.

``compare`` is pure: two sides and an instant in, a value out. ``revision`` asks git for one side, ``planning`` asks the
database what the next sync would do. ``text``, ``markdown`` and ``document`` write the values down.
"""
