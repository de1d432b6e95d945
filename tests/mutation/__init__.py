"""Seeded faults: what the test suite catches, measured before and after it changes (docs/development/seeded-faults.md)."""
