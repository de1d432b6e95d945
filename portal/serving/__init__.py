"""The portal's web processes: one for people's pages, sockets and files, one for the nodes.

``python -m portal.serving`` runs one of them, and ``python -m portal.serving.entry`` hands connections to both when they
share one address (``make run``). Behind a reverse proxy, the proxy chooses by the path and no entry is needed.
"""

NODES_PATH = "/agent/"
"""What begins like this is asked by nodes."""
TOO_FAST = 4430
"""The close code of a socket that sends too much. Its session opens no other for a while."""
