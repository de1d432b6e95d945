"""A training with a parameter server: each rank at its own pace, rank 0 with the server (``server.py``) beside its worker.

A worker sends the mean gradient of the samples it was given to the shards of the parameters (``shards.py``), which lie on
the same ranks; then it tells the desk. Back come parameters and the next samples, at once or when there is a version to go
on from.
"""

import math
import os
import queue
import sys
import threading
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from . import stopping
from .allocation import plan
from .loading import Batch, loaded
from .messages import HEADER, Afar, Link, Message, Order, Reply, Says, message
from .report import RankReport
from .server import Server, Work
from .shards import Gradients, Here, Parts, Posts, Shard, There, joined, options, parts_of
from .vectors import fill, flat, flat_gradients, vector_type, views_of

if TYPE_CHECKING:
    from .run import Run

USUAL = 20
"""Gradients of each worker, at most, that losses and times are the means of."""


class Desk:
    """The server on rank 0: one thread takes what other ranks say, another one decides, commands the shards and answers."""

    def __init__(self, run: "Run", server: Server, posts: Posts, shards: Sequence[Shard]) -> None:
        self._run, self._server, self._post, self._size = run, server, posts.desk, run.size
        self._shards, self._others_first = shards, shards[::-1]
        """The one of this rank comes last: the others are at work meanwhile."""
        self.over = False
        """The shards have nothing any more that the run here has not."""
        server.apply = self._apply
        self._arrived: queue.SimpleQueue[Message | Exception] = queue.SimpleQueue()
        self._own: queue.SimpleQueue[Reply | Exception] = queue.SimpleQueue()
        """Replies to the worker here."""
        self._waiting: set[int] = set()
        self._gone: set[int] = set()
        self._stops = False
        self._losses: deque[tuple[float, int]] = deque(maxlen=self._size * USUAL)
        self._last: dict[int, Message] = {}
        self._lately: dict[int, deque[Message]] = defaultdict(lambda: deque(maxlen=USUAL))
        """Since the last report."""
        self._heard: dict[int, int] = {}
        """The number of each worker's last gradient."""
        self._reported = (time.monotonic(), 0)
        """When, and how many samples had been used then."""
        self._saved_at = time.monotonic()
        works = (self._serve, self._take)
        self._threads = [threading.Thread(target=self._guarded, args=(work,), daemon=True) for work in works]
        for thread in self._threads:
            thread.start()

    def tell(self, said: Message) -> None:
        self._arrived.put(said)

    def hear(self) -> Reply:
        reply = self._own.get()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self) -> None:
        """Waits until all workers have said good-bye."""
        for thread in self._threads:
            thread.join()

    def failed(self, error: Exception) -> None:
        self._arrived.put(error)
        self._own.put(error)

    def state(self) -> tuple[torch.Tensor, dict[str, Any]]:
        """All parameters, and what the optimiser is, as its ``state_dict`` has it. For the thread that decides."""
        parts = [shard.state() for shard in self._shards]
        known = joined(self._run.optimizer, (part["optimizer"] for part in parts))
        optimizer = {**self._run.optimizer.state_dict(), "state": known}
        return torch.cat([part["parameters"] for part in parts]), optimizer

    def _guarded(self, work: Callable[[], None]) -> None:
        """Whatever goes wrong in a thread ends the worker here, and with it the ring."""
        try:
            work()
        except Exception as error:  # noqa: BLE001
            self.failed(error)

    def _take(self) -> None:
        header, gone = torch.empty(HEADER, dtype=torch.int64), 0
        while gone < self._size - 1:
            worker = self._post.receive(header)
            gone += int(header[0]) == Says.BYE
            self._arrived.put(message(worker, header.tolist()))

    def _serve(self) -> None:
        while len(self._gone) < self._size:
            said = self._arrived.get()
            if isinstance(said, Exception):
                return
            if said.says == Says.BYE:
                self._gone.add(said.worker)
                continue
            self._waiting.add(said.worker)
            if (said.stop or stopping.should_stop()) and not self._stops:
                self._stops = True
                self._run.save()
            if self._stops:
                self._answer_all(Order.STOP)
                continue
            work = self._decide(said)
            self._answer({worker: Reply(Order.WORK, self._server.version, each) for worker, each in work.items()})
            if self._server.done:
                self._answer_all(Order.DONE)
            elif self._server.meets:
                self._answer_all(Order.TOGETHER)
            elif time.monotonic() - self._saved_at >= self._run.checkpoint_seconds:
                self._saved_at = time.monotonic()
                self._run.save()
        # The optimiser that was given knows then what the shards' copies have learnt.
        self._run.optimizer.load_state_dict(self.state()[1])
        self.over = True
        for shard in self._shards:
            shard.end()

    def _decide(self, said: Message) -> dict[int, Work]:
        if said.says == Says.READY:
            return dict(self._server.ask(said.worker))
        self._last[said.worker] = said
        self._lately[said.worker].append(said)
        self._heard[said.worker] = said.number
        self._losses.append((said.loss, said.samples))
        work = dict(self._server.receive(said.worker, Gradients(((said.worker, said.number, 1.0),)), said.computing))
        self._run.reporter.reached(self._server.version)
        # The pace is reckoned by samples that were used, so some must have been since.
        if self._server.counts.used > self._reported[1] and self._run.reporter.due(self._server.done):
            self._report()
        return work

    def _answer(self, replies: Mapping[int, Reply]) -> None:
        # The worker of this rank last: it would compute while the others still wait for their answers.
        workers = sorted(replies, reverse=True)
        for worker in workers:
            self._waiting.discard(worker)
            reply = replies[worker]
            if worker == 0:
                self._own.put(reply)
                continue
            self._post.send(reply.header(), worker)
            if reply.work is not None:
                self._post.send(torch.from_numpy(reply.work.indices), worker)
        if workers:
            for shard in self._others_first:
                shard.give([(worker, self._heard.get(worker, -1)) for worker in workers])

    def _answer_all(self, told: Order) -> None:
        self._answer({worker: Reply(told, self._server.version) for worker in self._waiting})

    def _apply(self, gradients: Gradients, rate: float) -> None:
        factor, clip_norm = 1.0, self._run.clip_norm
        for shard in self._others_first:
            shard.add_up(gradients)
        if clip_norm is not None:
            length = math.sqrt(sum(shard.squared() for shard in self._others_first))
            factor = min(1.0, clip_norm / (length + 1e-6))  # as torch's own
        # A schedule of the user's moves the rates of the optimiser that was given.
        groups = options(self._run.optimizer)
        for shard in self._others_first:
            shard.step(groups, rate, factor)

    def _report(self) -> None:
        server, run, now = self._server, self._run, time.monotonic()
        at, used = self._reported
        self._reported = (now, server.counts.used)
        total, samples = (sum(column) for column in zip(*self._losses, strict=True))
        done = (server.sampler.epoch + 1 - server.sampler.left / server.sampler.length) / server.epochs
        run.reporter.step(
            step=server.version,
            epoch=server.sampler.epoch,
            done=min(1.0, done),
            total=server.epochs * server.sampler.length,
            batch=server.batch,
            ranks=self._size,
            seconds=(now - at) * server.batch / (server.counts.used - used),
            loss=total / max(1, samples),
            batches=(server.batch,) * 3,
        )
        run.reporter.ranks([self._of_rank(rank) for rank in range(self._size)])
        run.reporter.flush()

    def _of_rank(self, rank: int) -> RankReport:
        speed = self._server.speeds[rank]
        expected = speed.fixed_seconds() + speed.sample_seconds() * self._server.parts[rank]
        if rank not in self._last:
            return RankReport(0, 0, 0, expected, speed.error())
        lately = self._lately.pop(rank, (self._last[rank],))
        told = ((each.samples, each.computing, each.waiting) for each in lately)
        samples, computing, waiting = map(fmean, zip(*told, strict=True))
        return RankReport(samples, computing, waiting, expected, speed.error())


class Served:
    """The worker of each rank, in place of what ``Run`` does by itself where all ranks step together."""

    def __init__(self, run: "Run", posts: Posts, shards: int | None = None, **options: Any) -> None:
        self._run, self._posts, self._options = run, posts, options
        run.optimizer._opt_called = True  # schedules would complain: copies of it step, if any here
        self._parameters = [each for each in run.inner.parameters() if each.requires_grad]
        self._shards = parts_of(run.optimizer, self._parameters, run.size, shards)
        self.server: Server | None = None
        """On rank 0, from the first epoch on."""
        self._desk: Desk | None = None
        self._here: Here | None = None
        """The shard of this rank, if it has one."""
        self._commanded: threading.Thread | None = None
        self._work: Work | None = None
        self._number = 0
        self._began_at = self._waited = self._loss_sum = 0.0

    def begin(self, epochs: int) -> None:
        """On all ranks at once: they go apart, until that many epochs are done or they are told to go on together."""
        run = self._run
        # Each shard begins with its own rank's parameters, which are to be those of one model.
        fill(self._parameters, run.world.broadcast(flat(self._parameters)))
        self._here = None
        if run.rank < len(self._shards):
            self._here = Here(run, self._posts, self._shards[run.rank], self._failed)
        if run.rank == 0:
            assert self._here is not None  # noqa: S101 - there is at least one shard
            there = [There(rank, self._posts.commands) for rank in range(1, len(self._shards))]
            self.server = Server(
                deepcopy(run.sampler),
                mode=run.mode,  # type: ignore[arg-type]
                batch=run.batch,
                workers=run.size,
                epochs=epochs,
                version=run.steps,
                parts=run.parts,
                most_samples=run.most,
                **self._options,
            )
            self._desk = Desk(run, self.server, self._posts, [self._here, *there])
        elif self._here is not None:
            self._commanded = threading.Thread(target=self._here.serve, daemon=True)
            self._commanded.start()
        self._link: Link = self._desk or Afar(self._posts.desk)
        self._parts = Parts(run.rank, self._posts, vector_type(self._parameters), self._shards, self._here)
        self._number = 0
        self._exchange(Message(run.rank, Says.READY, stop=stopping.should_stop()))

    def is_over(self, epoch: int) -> bool:
        """For this rank: in some epochs a slow one may get nothing."""
        return self._work is None or self._work.epoch != epoch

    def _failed(self, error: Exception) -> None:
        """The shard of this rank has. Where the desk is not, the worker waits for other ranks, which wait for the shard: no
        exception reaches it, so the process ends, and with it the ring."""
        if self._desk is not None:
            self._desk.failed(error)
            return
        traceback.print_exception(error)
        sys.stderr.flush()
        os._exit(1)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """For as long as the server has some of that epoch for this rank."""
        run = self._run
        while self._work is not None and self._work.epoch == epoch:
            indices = self._work.indices
            planned = plan(len(indices), (1,), (run.most[run.rank],), 0)  # a worker's part is its own batch
            for number, (place, own) in enumerate(planned):
                content = loaded(run.data, indices[place], run.device)
                yield Batch(content, own, own, len(indices), number, len(planned))

    def step(self, loss: torch.Tensor, batch: Batch) -> None:
        """``loss`` is the mean over the samples of this pass, or their sum."""
        if batch.number == 0:
            self._loss_sum = 0.0
            for parameter in self._parameters:
                parameter.grad = None
        samples = batch.total
        loss = loss * self._run.losses.weight(loss, batch.own)
        (loss / samples).backward()
        self._loss_sum += float(loss.detach())
        if not batch.is_last:
            return
        self._check_parameters()
        gradient = flat_gradients(self._parameters)
        seconds = time.perf_counter() - self._began_at
        stop, total = stopping.should_stop(), self._loss_sum
        self._run.loss = total / samples
        self._number += 1
        asked_at = time.perf_counter()
        self._parts.send(self._number, gradient)
        said = Message(self._run.rank, Says.GRADIENT, seconds, self._waited, stop, samples, total, self._number)
        self._exchange(said, asked_at)

    def _check_parameters(self) -> None:
        """Raise ``ValueError`` for a parameter that would not be trained: no shard has it."""
        known = set(map(id, self._parameters))
        if late := [
            name for name, each in self._run.inner.named_parameters() if each.requires_grad and id(each) not in known
        ]:
            raise ValueError(
                f"mode {self._run.mode} trains the parameters that required gradients when Run was created, and {late[0]} did "
                "not. Unfreeze it before, or choose the mode bsp"
            )

    def _exchange(self, said: Message, asked_at: float | None = None) -> None:
        """The next work, or none. Raises what ended the training."""
        asked_at = asked_at or time.perf_counter()
        self._link.tell(said)
        reply = self._link.hear()
        fill(self._parameters, self._parts.receive())
        self._run.steps, self._work = reply.version, reply.work
        self._began_at = time.perf_counter()
        self._waited = self._began_at - asked_at
        if reply.told != Order.WORK:
            self._parts.close()
            self._link.tell(Message(self._run.rank, Says.BYE))
            self._link.close()
            if self._commanded is not None:
                self._commanded.join()  # others may still need the shard
        if reply.told == Order.STOP:
            raise stopping.Stopped(0)
        if reply.told == Order.TOGETHER:
            self._run.meet()

    def state(self) -> dict[str, Any] | None:
        """What the server and the shards have of the training's state. None where it is not, and before it began."""
        if self._desk is None or self.server is None:
            return None
        run = self._run
        model, optimizer = run.inner.state_dict(), run.optimizer.state_dict()
        if not self._desk.over:
            vector, optimizer = self._desk.state()
            views = {id(each): view for each, view in views_of(self._parameters, vector)}
            named = run.inner.named_parameters(remove_duplicate=False)
            model.update({name: views[id(each)] for name, each in named if id(each) in views})
        facts = {"sampler": self.server.standing(), "steps": self.server.version, "batch": self.server.batch}
        return {"model": model, "optimizer": optimizer, **facts}
