from django.apps import AppConfig


class GaugesConfig(AppConfig):
    name = "portal.gauges"
