"""The limits and accounts of a snapshot: with the jobs that exist now, and with the usage by day."""

from collections.abc import Iterable
from dataclasses import replace
from math import ceil

import numpy as np

from scheduling.types import Account, Job, JobId, Limit

DAY = 86400.0
BIN = 3600.0
"""The usage of accounts is kept by the hour."""
REFRESH_SECONDS = 600.0
"""The usage in snapshots is updated every ten minutes, which is little against a memory of days."""


class UsageLedger:
    def __init__(self, now: float, limits: Iterable[Limit], accounts: Iterable[Account], days: int) -> None:
        self._limits, self._accounts = list(limits), list(accounts)
        self._limits_of = _indices_by_job(self._limits)
        self._accounts_of = _indices_by_job(self._accounts)
        self._limits = [replace(limit, jobs=frozenset()) for limit in self._limits]
        self._accounts = [replace(account, jobs=frozenset()) for account in self._accounts]
        self._present: set[int] = set()
        """Accounts with jobs."""
        self._listed_limits: tuple[Limit, ...] | None = None
        self._listed_accounts: tuple[Account, ...] | None = None
        self.now, self.days = now, days
        self.per_day = int(DAY / BIN)
        bins = days * self.per_day
        self.used = np.zeros((len(self._accounts), bins))
        """GPU-seconds by account and bin; the last column is the current bin."""
        self.bin = 0
        self._latest = [0.0] * len(self._accounts)
        """GPU-seconds of the current bin that are not yet in ``used``: adding to a list is fast."""
        self._refresh_at = now
        self._by_day = np.zeros((0, days))
        self._up_to_date: set[int] = set()
        for row, account in enumerate(self._accounts):
            for day, seconds in enumerate(account.used[:days]):
                end = bins - day * self.per_day
                self.used[row, end - self.per_day : end] = seconds / self.per_day

    def add_job(self, job: Job) -> None:
        for index in self._limits_of.get(job.id, ()):
            limit = self._limits[index]
            self._limits[index] = replace(limit, jobs=limit.jobs | {job.id})
            self._listed_limits = None
        for index in self._accounts_of.get(job.id, ()):
            account = self._accounts[index]
            self._accounts[index] = _with_jobs(account, account.jobs | {job.id})
            self._present.add(index)
            self._listed_accounts = None

    def remove_job(self, job: JobId) -> None:
        for index in self._limits_of.get(job, ()):
            limit = self._limits[index]
            self._limits[index] = replace(limit, jobs=limit.jobs - {job})
            self._listed_limits = None
        for index in self._accounts_of.get(job, ()):
            account = self._accounts[index]
            self._accounts[index] = _with_jobs(account, account.jobs - {job})
            if not self._accounts[index].jobs:
                self._present.discard(index)
            self._listed_accounts = None

    def add_leaving(self, job: JobId, gpus: int) -> None:
        for index in self._limits_of.get(job, ()):
            limit = self._limits[index]
            self._limits[index] = replace(limit, leaving=limit.leaving + gpus)
            self._listed_limits = None

    def add_usage(self, job: JobId, start: float, seconds: float, gpus: int) -> None:
        """Count GPUs held from ``start`` on, times the share factor of the job, with a resolution of an hour."""
        accounts = self._accounts_of.get(job)
        if not accounts:
            return
        since = self.now + self.bin * BIN
        if start >= since and start + seconds <= since + BIN:
            for index in accounts:
                self._latest[index] += seconds * gpus
            return
        self._roll(start + seconds)
        first = int((start - self.now) / BIN)
        last = max(first, ceil((start + seconds - self.now) / BIN) - 1)
        end = self.used.shape[1] - (self.bin - last)
        bins = min(end, 1 + last - first)
        self.used[accounts, end - bins : end] += seconds * gpus / bins

    def limits(self) -> tuple[Limit, ...]:
        if self._listed_limits is None:
            self._listed_limits = tuple(limit for limit in self._limits if limit.jobs)
        return self._listed_limits

    def accounts(self, now: float) -> tuple[Account, ...]:
        if not self._accounts:
            return ()
        if now >= self._refresh_at:
            self._roll(now)
            self._flush()
            self._refresh_at = now + REFRESH_SECONDS
            self._by_day = self.used.reshape(len(self._accounts), self.days, self.per_day).sum(axis=2)[:, ::-1]
            self._up_to_date.clear()
            self._listed_accounts = None
        if self._listed_accounts is None:
            self._listed_accounts = tuple([self._account(index) for index in sorted(self._present)])
        return self._listed_accounts

    def _account(self, index: int) -> Account:
        """Return an account with its usage by day, which is up to date only for accounts with jobs."""
        if index not in self._up_to_date:
            self._up_to_date.add(index)
            used = tuple(self._by_day[index].tolist())
            account = self._accounts[index]
            self._accounts[index] = Account(account.name, account.weight, account.jobs, used, account.parent)
        return self._accounts[index]

    def _flush(self) -> None:
        if self._accounts:
            self.used[:, -1] += self._latest
            self._latest = [0.0] * len(self._accounts)

    def _roll(self, now: float) -> None:
        """Move the window of bins forward to ``now``."""
        ahead = int((now - self.now) / BIN) - self.bin
        if ahead <= 0:
            return
        self._flush()
        self.bin += ahead
        if ahead >= self.used.shape[1]:
            self.used[:] = 0.0
        else:
            self.used[:, :-ahead] = self.used[:, ahead:]
            self.used[:, -ahead:] = 0.0


def _with_jobs(account: Account, jobs: frozenset[JobId]) -> Account:
    """Return the account with these jobs: like ``replace``, in a third of the time."""
    return Account(account.name, account.weight, jobs, account.used, account.parent)


def _indices_by_job(named: Iterable[Limit | Account]) -> dict[JobId, list[int]]:
    of: dict[JobId, list[int]] = {}
    for index, item in enumerate(named):
        for job in item.jobs:
            of.setdefault(job, []).append(index)
    return of
