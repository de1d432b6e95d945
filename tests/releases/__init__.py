"""Labs as earlier releases left them, one folder for each: what an upgrade finds.

``small.tar.xz`` is the data folder of a portal on SQLite, ``lab.tar.xz`` one beside ``database.sql``, a dump of PostgreSQL;
``expected.json`` has what is in both. ``python -m tests.releases`` makes the folder of the present release, for the release
checklist (docs/development/releases.md). The agent of the release before is tests/runners/agent/previous_release.tar.xz.
"""
