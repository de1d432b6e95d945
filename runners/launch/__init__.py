"""What runs inside a job's containers. Standard library and Horovod only; no other part of Schedulearn but ``spec``.

``supervisor`` is a host's first process, ``driver`` the driver's. Both read the folder ``control`` (written by the
agent) and write the folder ``scribe`` (read by the agent).
"""
