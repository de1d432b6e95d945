"""Runs the tests layer by layer: ``python -m tests.run check | test | all | LAYER ...``.

    check       lint, pure tests and the core of each app: before every commit (make check)
    test        every real part once, within the budget of each layer (make test)
    all         everything, on both databases, with new random examples (make test-all)
    LAYER ...   these layers, whole; ``--level test`` leaves out what is marked thorough
    slowest     the fifty slowest tests of the last run

``--from LAYER`` begins at a layer, to continue a run that was interrupted. ``INSTALL=no`` installs nothing and starts no
Docker Engine: layers that need more than this machine has are listed and left out. JUnit files of the last run are kept
in ``.test-reports/``.
"""
