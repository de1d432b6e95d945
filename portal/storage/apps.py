from django.apps import AppConfig


class StorageConfig(AppConfig):
    name = "portal.storage"
