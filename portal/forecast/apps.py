from django.apps import AppConfig


class ForecastConfig(AppConfig):
    name = "portal.forecast"
