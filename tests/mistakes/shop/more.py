from .mail import *  # noqa: F403
