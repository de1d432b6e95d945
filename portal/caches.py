"""The cache of the lab size: counts of requests and of reset mails, which nobody misses while Redis is away."""

import logging
from typing import Any

import redis
from django.core.cache.backends.redis import RedisCache

log = logging.getLogger(__name__)


class ForgivingRedisCache(RedisCache):
    """Empty while Redis is away: a limit that cannot be counted refuses nobody, and nothing else waits for it."""

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
