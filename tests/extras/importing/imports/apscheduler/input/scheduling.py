from zoneinfo import ZoneInfo

from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from shop import tasks
from shop.tasks import report as weekly_report

scheduler = BlockingScheduler(timezone="Europe/Berlin")


@scheduler.scheduled_job("cron", day_of_week="0-4", hour=17)
def close_day():
    tasks.close()


@scheduler.scheduled_job("interval", minutes=15, id="poll_orders")
async def poll():
    pass


scheduler.add_job(weekly_report, "cron", day_of_week="6", hour=3, minute=30, kwargs={"weeks": 1}, jitter=120)
scheduler.add_job(tasks.refresh, "interval", hours=2, misfire_grace_time=300, coalesce=True, max_instances=3)
scheduler.add_job("shop.tasks:poll", CronTrigger.from_crontab("0 0 * * mon", timezone=ZoneInfo("UTC")), id="weekly")
scheduler.add_job(tasks.close, CronTrigger(day="last", hour=6), id="month_end")
scheduler.add_job(tasks.close, "cron", day=1, day_of_week="mon")
scheduler.add_job(tasks.close, IntervalTrigger(days=1, start_date="2026-01-01 04:00:00"), name="Close the day")
scheduler.add_job(tasks.close, "interval", days=1, name="Close the day")
scheduler.add_job(tasks.charge, "cron", [16], hour=4)
scheduler.add_job(tasks.heartbeat, "interval", seconds=30)
scheduler.add_job(tasks.lights, "date", run_date="2027-01-01")
scheduler.add_job(lambda: tasks.close(), "cron", hour=5)
scheduler.add_job(tasks.close, "cron", month="1-6", misfire_grace_time=None, executor="processpool")
scheduler.start()
