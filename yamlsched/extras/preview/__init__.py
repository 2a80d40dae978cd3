"""What an edit of schedules.yaml will do, before it is applied. See docs/review.md.

``diff`` compares two files: two sides and an instant in, a ``model.Preview`` out. ``plan`` compares
a file with what a database has, and adds what the next sync would do. ``text`` makes a
document of a preview for people, ``model.document`` one for programs.
"""
