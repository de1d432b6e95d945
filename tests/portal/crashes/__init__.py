"""A lab in one process whose parts can be killed at any point where they do something that lasts.

What runs is the product: the scheduler's command, the views that agents and users call, and agents with their action
executors and journals. An engine in memory that outlives its agent stands in for Docker. Time is the lab's, nothing
waits, and all random choices come from a seed, so that a run with the same seed passes the same points again.

    points      counts and names commits, calls of the engine, notes and requests, and kills there; the lab's clock
    processes   what is killed, stays away for some seconds, and restarts with nothing in memory
    node        an agent above an engine and a disk that stay
    lab         two nodes, a portal, and a story (stories.py) of what people do
    judge       what really ran when, by the engines, and what the portal's account must agree with
"""
