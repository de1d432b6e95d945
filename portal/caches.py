"""The cache of the lab size: counts of requests and of reset mails, which are optional while Redis is unavailable."""

import logging
from typing import Any

import redis
from django.core.cache.backends.redis import RedisCache

log = logging.getLogger(__name__)


class ForgivingRedisCache(RedisCache):
    """A cache that is empty while Redis is unavailable: limits that cannot be counted refuse no request."""

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        try:
            return super().get(key, default, version)
        except redis.RedisError as error:
            log.warning("requests are not counted: %s", error)
            return default

    def set(self, key: Any, value: Any, *args: Any, **kwargs: Any) -> None:
        try:
            super().set(key, value, *args, **kwargs)
        except redis.RedisError as error:
            log.warning("requests are not counted: %s", error)

    def add(self, key: Any, value: Any, *args: Any, **kwargs: Any) -> bool:
        try:
            return super().add(key, value, *args, **kwargs)
        except redis.RedisError as error:
            log.warning("requests are not counted: %s", error)
            return True
