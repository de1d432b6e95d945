"""Notices to people, and events to programs: an outbox in the database, and the worker that empties it."""
