from django.apps import AppConfig


class NotificationsConfig(AppConfig):
    name = "portal.notifications"

    def ready(self) -> None:
        from portal.notifications import checks, receivers  # noqa: F401  # registers and connects them
