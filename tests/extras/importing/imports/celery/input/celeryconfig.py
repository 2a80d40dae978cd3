import os
from datetime import timedelta

from celery import Celery
from celery.schedules import crontab, solar

app = Celery("shop", broker=os.environ["BROKER_URL"])
app.conf.timezone = "Europe/Berlin"
EVERY = 5 * 60

app.conf.beat_schedule = {
    "monday-report": {
        "task": "shop.tasks.report",
        "schedule": crontab(hour=7, minute=30, day_of_week="monday"),
        "kwargs": {"weeks": 1},
        "options": {"queue": "slow", "expires": 3600},
    },
    "refresh": {"task": "shop.tasks.refresh", "schedule": timedelta(minutes=10)},
    "heartbeat": {"task": "shop.tasks.heartbeat", "schedule": 30.0},
    "sunset": {"task": "shop.tasks.lights", "schedule": solar("sunset", -37.81753, 144.96715)},
    "every-minute": {"task": "shop.tasks.poll", "schedule": crontab()},
    "nights": {"task": "shop.tasks.poll", "schedule": crontab(minute="*/15", hour="22-2")},
    "hourly": {"task": "shop.tasks.poll", "schedule": 60 * 60, "args": ()},
    "first-monday": {"task": "shop.tasks.close", "schedule": crontab(0, 6, "mon", "1-7")},
    "monday-the-first": {"task": "shop.tasks.close", "schedule": crontab(0, 6, day_of_week="mon", day_of_month=1)},
    "charge": {"task": "shop.tasks.charge", "schedule": crontab(hour=3, minute=0), "args": (16, 16)},
    "computed": {"task": "shop.tasks.refresh", "schedule": EVERY},
    "renamed": {"task": "send-mail", "schedule": crontab(minute=0)},
}
