"""A lab in one process whose parts can be killed at any point where they do something that lasts.

What runs is the product: the scheduler's command, the views that agents and people ask, agents with their hands and
notes. In the place of Docker stands an engine in memory that outlives its agent. Time is the lab's own, nothing waits,
and all that is left to chance comes from a seed, so that a run with the same seed passes the same points again.

    points      counts and names commits, calls of the engine, notes and questions, and kills there; the lab's clock
    processes   what is killed, stays away for some seconds, and begins anew with nothing in memory
    node        an agent above an engine and a disk that stay
    lab         two nodes, a portal, and a story (stories.py) of what people do
    judge       what really ran when, by the engines, and what the portal's account must agree with
"""
