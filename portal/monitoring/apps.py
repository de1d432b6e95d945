from django.apps import AppConfig


class MonitoringConfig(AppConfig):
    name = "portal.monitoring"
    label = "gauges"  # of the tables and migrations, from before the app was called monitoring
    verbose_name = "Monitoring"
