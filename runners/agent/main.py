"""Starts the agent of a node from its settings, and ends it with a signal."""

import logging
import os
import signal
import sys

from runners.agent import shared_folders
from runners.agent.job_secrets import memory_folder
from runners.agent.machine import Machine
from runners.agent.program import Agent
from runners.agent.settings import NodeIdentity, Settings, load_or_join, lock_home, make_runtime
from runners.agent.signals import StopSignal
from runners.host.node_files import NodeFiles
from runners.runtime import SetupError

logger = logging.getLogger("runners.agent")


def run(settings: Settings) -> int:
    """Run the agent until it is stopped. Raises SetupError when it cannot start."""
    stop = StopSignal(signal.SIGTERM, signal.SIGINT)
    files = NodeFiles(settings.home, settings.datasets, settings.shared, memory_folder(settings.home))
    lock = lock_home(files)
    try:
        shared_folders.prepare(files)
        identity: NodeIdentity = load_or_join(settings, files, stop)
        runtime, environments, own_images = make_runtime(identity, files, settings)
        portal = settings.client(settings.url or identity.url, identity.token)
        machine = Machine(files.home, runtime, portal.url, settings.overlay_address, files, settings.cache_gib > 0)
        limits = settings.cache_gib, own_images, settings.dataset_cache_gib
        agent = Agent(files, portal, runtime, environments, machine, *limits)
        try:
            agent.start()
        except ValueError as error:  # an invalid SCHEDULEARN_CPU_SLOTS
            raise SetupError(str(error)) from error
        logger.info("Agent of node %s (%s, %s) at %s.", identity.node, identity.name, runtime.kind, portal.url)
        stop.wait()
        logger.info("Stopping%s.", " with all containers" if settings.stop_jobs_on_exit else "; containers run on")
        agent.stop(stop_jobs=settings.stop_jobs_on_exit)
    finally:
        lock.close()
    return 0


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        return run(Settings.read(sys.argv[1:], os.environ))
    except SetupError as error:
        logger.error("%s", error)
        return 2
