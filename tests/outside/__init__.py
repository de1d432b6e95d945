"""An outside checker of the scheduler: random load on a running portal, judged by what its REST API answers.

``lab`` starts the real web and scheduler processes on SQLite, and agents whose GPUs are pretended (``nodes``). ``load``
submits jobs and disturbs them as people and admins do, by a seed; ``poller`` polls twice a second. ``record`` is what they
have seen, and each law in ``laws`` and ``history_laws`` is judged from it alone: no law shares code with the product.

``make test-all`` runs it for a minute and a half with a new seed (``test_lab``); for a long run:

    python -m tests.outside --minutes 20 --seed 7
"""
