"""The portal's web processes: one for users (pages, WebSockets, files), one for the nodes.

``python -m portal.serving`` runs one of them. ``python -m portal.serving.entry`` distributes connections to both when they
share one address (``make run``). A reverse proxy can do this by path instead.
"""

NODES_PATH = "/agent/"
"""The prefix of all paths that nodes request."""
TOO_FAST_CLOSE_CODE = 4430
"""The close code of a WebSocket that sends too much. Its session cannot open another one for a while."""
