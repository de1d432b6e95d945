"""The cache of the lab size: counts of requests and of reset mails, which are optional while Redis is unavailable."""

import logging
from typing import Any

import redis
from django.core.cache.backends.base import DEFAULT_TIMEOUT
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

    def get_many(self, keys: Any, version: int | None = None) -> dict[Any, Any]:
        try:
            return super().get_many(keys, version)
        except redis.RedisError as error:
            log.warning("nothing is read from the cache: %s", error)
            return {}

    def set_many(self, data: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> list[Any]:
        try:
            return super().set_many(data, timeout, version)
        except redis.RedisError as error:
            log.warning("nothing is kept in the cache: %s", error)
            return list(data)

    def incr(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        try:
            return int(super().incr(key, delta, version))
        except redis.RedisError as error:
            log.warning("requests are not counted: %s", error)
            return 0
