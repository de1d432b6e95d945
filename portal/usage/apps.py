from django.apps import AppConfig


class UsageConfig(AppConfig):
    name = "portal.usage"

    def ready(self) -> None:
        from portal.usage import signals  # noqa: F401  # connects them
