from django.apps import AppConfig


class SecretsConfig(AppConfig):
    name = "portal.secrets"
