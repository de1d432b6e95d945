"""Celery tasks: slow work that may be repeated. The small size runs a task in the process that requests it."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

app = Celery("portal")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.conf.beat_schedule = {
    "tidy": {"task": "portal.scheduler.tasks.tidy", "schedule": 3600.0},
    "trash": {"task": "portal.deletion.tasks.tidy", "schedule": 3600.0},
    "people": {"task": "portal.deletion.tasks.erase_people", "schedule": 60.0, "options": {"expires": 50}},
    "look": {"task": "portal.usage.tasks.look", "schedule": 60.0},
    "roll up": {"task": "portal.usage.tasks.roll_up", "schedule": 3600.0},
    "idle": {"task": "portal.scheduler.tasks.idle_gpus", "schedule": 60.0, "options": {"expires": 50}},
    "silence": {"task": "portal.scheduler.tasks.silent_jobs", "schedule": 60.0, "options": {"expires": 50}},
    "notifications": {"task": "portal.notifications.tasks.deliver", "schedule": 5.0, "options": {"expires": 4}},
    "old notifications": {"task": "portal.notifications.tasks.tidy", "schedule": 3600.0},
    "schedules": {"task": "portal.schedules.tasks.run_due", "schedule": 30.0, "options": {"expires": 25}},
    "old runs of schedules": {"task": "portal.schedules.tasks.tidy", "schedule": 86_400.0},
    "alarms": {"task": "portal.cluster.tasks.mail_admins", "schedule": 60.0, "options": {"expires": 50}},
    "monitoring": {"task": "portal.monitoring.tasks.roll_up", "schedule": 3600.0},
    "peaks": {"task": "portal.monitoring.tasks.measure_peaks", "schedule": 120.0, "options": {"expires": 100}},
    "datasets": {"task": "portal.storage.tasks.check", "schedule": 5.0, "options": {"expires": 4}},
    "simulations": {"task": "portal.whatif.tasks.work", "schedule": 5.0, "options": {"expires": 4}},
    "forecast": {"task": "portal.forecast.tasks.refresh", "schedule": 30.0, "options": {"expires": 25}},
}
