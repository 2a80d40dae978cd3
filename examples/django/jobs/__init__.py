"""The handlers that schedules.yaml names. Importing this package sets up Django, as manage.py does."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
django.setup()
