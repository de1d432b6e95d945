"""A script's view of the API in tests: a token, JSON in and out."""

from typing import Any

from rest_framework.test import APIClient

from portal.accounts.models import ApiToken, User


class Script(APIClient):
    """``Script(alice).get("jobs/")``: addresses below /api/v1/."""

    def __init__(self, user: User | None = None, scope: str = ApiToken.Scope.WRITE) -> None:
        super().__init__()
        if user is not None:
            self.credentials(HTTP_AUTHORIZATION=f"Bearer {ApiToken.issue(user, 'test', scope=scope)[1]}")

    def generic(self, method: str, path: Any, *args: Any, **kwargs: Any) -> Any:
        return super().generic(method, path if path.startswith("/") else f"/api/v1/{path}", *args, **kwargs)

    def send(self, method: str, path: str, data: Any = None, **headers: str) -> Any:
        return getattr(self, method)(path, data, format="json", headers=headers)
