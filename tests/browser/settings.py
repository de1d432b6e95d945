"""The portal's settings for browser tests, whose nodes have no agents: a node that reported today counts as online."""

from portal.settings import *  # noqa: F403

NODE_LOST_AFTER_SECONDS = 24 * 3600
NODE_ALARM_AFTER_SECONDS = 24 * 3600
