from django.conf import settings
from django.utils.module_loading import import_string


def test_no_middleware_makes_a_waiting_request_hold_a_thread() -> None:
    assert [path for path in settings.MIDDLEWARE if not getattr(import_string(path), "async_capable", False)] == []
