from django.apps import AppConfig


class LiveConfig(AppConfig):
    name = "portal.live"

    def ready(self) -> None:
        from portal.live import signals  # noqa: F401  # connects them
