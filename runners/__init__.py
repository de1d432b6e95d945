"""The programs of a node: the agent, runtimes, environments and what jobs are launched with."""

__version__ = "1.0.0rc1"
"""Of all of Schedulearn: pages, API, agent and commands show it."""
