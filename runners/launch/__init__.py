"""What runs inside a job's containers. It needs the standard library, Horovod and ``spec``, and nothing else of ours.

``supervisor`` is a host's first process, ``driver`` the driver's. Both read the folder ``control`` (written by the
agent) and write the folder ``scribe`` (read by the agent).
"""
