"""Training with a parameter server: each rank works at its own pace, and rank 0 also runs the server (``server.py``).

A worker sends the mean gradient of its samples to the shards of the parameters (``shards.py``), which are on the same
ranks, and then a message to the server endpoint. It receives parameters and its next samples, at once or as soon as there
is a new version of the parameters to work with.
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
from .allocation import plan_passes
from .loading import Batch, load_batch
from .messages import HEADER, Link, Message, MessageKind, RemoteEndpoint, Reply, ReplyKind, parse_message
from .report import RankReport
from .server import Server, Work
from .shards import (
    Channels,
    Gradients,
    LocalShard,
    RemoteShard,
    Shard,
    ShardClient,
    merged_state,
    options,
    shard_slices,
)
from .synchrony import ROUNDS_UNTIL_LOCKSTEP
from .vectors import fill, flatten, flatten_gradients, vector_type, views_of

if TYPE_CHECKING:
    from .training_state import TrainingState

RECENT_GRADIENTS = 20
"""Reported losses and times are means over at most so many gradients of each worker."""


class ServerEndpoint:
    """Runs the server on rank 0: one thread receives messages of other ranks, another decides, commands the shards and replies."""

    def __init__(self, training: "TrainingState", server: Server, channels: Channels, shards: Sequence[Shard]) -> None:
        self._training, self._server = training, server
        self._channel, self._size = channels.requests, training.size
        self._shards, self._others_first = shards, shards[::-1]
        """The shard of this rank comes last, so that the others work meanwhile."""
        self.over = False
        """The training on this rank has all that the shards had."""
        server.apply = self._apply
        self._arrived: queue.SimpleQueue[Message | Exception] = queue.SimpleQueue()
        self._own: queue.SimpleQueue[Reply | Exception] = queue.SimpleQueue()
        """Replies to the worker of this rank."""
        self._waiting: set[int] = set()
        self._gone: set[int] = set()
        self._stops = False
        self._losses: deque[tuple[float, int]] = deque(maxlen=self._size * RECENT_GRADIENTS)
        self._last: dict[int, Message] = {}
        self._since_report: dict[int, deque[Message]] = defaultdict(lambda: deque(maxlen=RECENT_GRADIENTS))
        self._last_gradient: dict[int, int] = {}
        """The number of the last gradient of each worker."""
        self._reported = (time.monotonic(), 0)
        """Time of the last report, and the samples that had been used by then."""
        self._saved_at = time.monotonic()
        loops = (self._serve, self._receive_messages)
        self._threads = [threading.Thread(target=self._run_guarded, args=(loop,), daemon=True) for loop in loops]
        for thread in self._threads:
            thread.start()

    def send(self, message: Message) -> None:
        self._arrived.put(message)

    def receive(self) -> Reply:
        reply = self._own.get()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self) -> None:
        """Wait until all workers have sent BYE."""
        for thread in self._threads:
            thread.join()

    def fail(self, error: Exception) -> None:
        self._arrived.put(error)
        self._own.put(error)

    def state(self) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return all parameters and the ``state_dict`` of the optimiser. Only the thread that decides may call it."""
        parts = [shard.state() for shard in self._shards]
        merged = merged_state(self._training.optimizer, (part["optimizer"] for part in parts))
        optimizer = {**self._training.optimizer.state_dict(), "state": merged}
        return torch.cat([part["parameters"] for part in parts]), optimizer

    def _run_guarded(self, loop: Callable[[], None]) -> None:
        """Pass any error of a thread on to the worker of this rank, which ends and with it the rank group."""
        try:
            loop()
        except Exception as error:  # noqa: BLE001
            self.fail(error)

    def _receive_messages(self) -> None:
        header, gone = torch.empty(HEADER, dtype=torch.int64), 0
        while gone < self._size - 1:
            worker = self._channel.receive(header)
            gone += int(header[0]) == MessageKind.BYE
            self._arrived.put(parse_message(worker, header.tolist()))

    def _serve(self) -> None:
        while len(self._gone) < self._size:
            message = self._arrived.get()
            if isinstance(message, Exception):
                return
            if message.kind == MessageKind.BYE:
                self._gone.add(message.worker)
                continue
            self._waiting.add(message.worker)
            if (message.stop or stopping.should_stop()) and not self._stops:
                self._stops = True
                self._training.save()
            if self._stops:
                self._answer_all(ReplyKind.STOP)
                continue
            work = self._decide(message)
            self._answer({worker: Reply(ReplyKind.WORK, self._server.version, each) for worker, each in work.items()})
            if self._server.done:
                self._answer_all(ReplyKind.DONE)
            elif self._server.returns_to_lockstep:
                self._answer_all(ReplyKind.LOCKSTEP)
            elif time.monotonic() - self._saved_at >= self._training.checkpoints.every_seconds:
                self._saved_at = time.monotonic()
                self._training.save()
        # From here on the user's optimiser has the state of the shards' copies.
        self._training.optimizer.load_state_dict(self.state()[1])
        self.over = True
        for shard in self._shards:
            shard.end()

    def _decide(self, message: Message) -> dict[int, Work]:
        worker = message.worker
        if message.kind == MessageKind.READY:
            return dict(self._server.register(worker))
        self._last[worker] = message
        self._since_report[worker].append(message)
        self._last_gradient[worker] = message.number
        self._losses.append((message.loss, message.samples))
        work = dict(self._server.receive(worker, Gradients(((worker, message.number, 1.0),)), message.computing))
        self._training.reporter.reached(self._server.version)
        # The reported pace counts used samples, so at least one must have been used since the last report.
        if self._server.counts.used > self._reported[1] and self._training.reporter.due(self._server.done):
            self._report()
        return work

    def _answer(self, replies: Mapping[int, Reply]) -> None:
        # The worker of this rank comes last: it would compute while the others still wait for their replies.
        workers = sorted(replies, reverse=True)
        for worker in workers:
            self._waiting.discard(worker)
            reply = replies[worker]
            if worker == 0:
                self._own.put(reply)
                continue
            self._channel.send(reply.header(), worker)
            if reply.work is not None:
                self._channel.send(torch.from_numpy(reply.work.indices), worker)
        if workers:
            for shard in self._others_first:
                shard.send_parameters([(worker, self._last_gradient.get(worker, -1)) for worker in workers])

    def _answer_all(self, kind: ReplyKind) -> None:
        self._answer({worker: Reply(kind, self._server.version) for worker in self._waiting})

    def _apply(self, gradients: Gradients, rate: float) -> None:
        factor, clip_norm = 1.0, self._training.clip_norm
        for shard in self._others_first:
            shard.accumulate(gradients)
        if clip_norm is not None:
            norm = math.sqrt(sum(shard.squared_norm() for shard in self._others_first))
            factor = min(1.0, clip_norm / (norm + 1e-6))  # as in torch.nn.utils.clip_grad_norm_
        # The user's learning-rate schedule changes the user's optimiser.
        groups = options(self._training.optimizer)
        for shard in self._others_first:
            shard.step(groups, rate, factor)

    def _report(self) -> None:
        server, training, now = self._server, self._training, time.monotonic()
        at, used = self._reported
        self._reported = (now, server.counts.used)
        total, samples = (sum(column) for column in zip(*self._losses, strict=True))
        done = (server.sampler.epoch + 1 - server.sampler.left / server.sampler.length) / server.epochs
        training.reporter.step(
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
        training.reporter.ranks([self._rank_report(rank) for rank in range(self._size)])
        training.reporter.flush()

    def _rank_report(self, rank: int) -> RankReport:
        speed = self._server.speeds[rank]
        expected = speed.fixed_seconds() + speed.sample_seconds() * self._server.parts[rank]
        if rank not in self._last:
            return RankReport(0, 0, 0, expected, speed.error())
        recent = self._since_report.pop(rank, (self._last[rank],))
        measured = ((each.samples, each.computing, each.waiting) for each in recent)
        samples, computing, waiting = map(fmean, zip(*measured, strict=True))
        return RankReport(samples, computing, waiting, expected, speed.error())


class ServerClient:
    """The worker of each rank, which replaces ``LockstepUpdates`` while ranks are not in lockstep."""

    def __init__(self, training: "TrainingState", channels: Channels, return_to_lockstep: Callable[[], None]) -> None:
        self._training, self._channels, self._return_to_lockstep = training, channels, return_to_lockstep
        training.optimizer._opt_called = True  # else schedules warn, because only copies of the optimiser step
        self._parameters = [each for each in training.module.parameters() if each.requires_grad]
        self._shards = shard_slices(training.optimizer, self._parameters, training.size, training.mode.shards)
        self.server: Server | None = None
        """On rank 0 only, from the first epoch on."""
        self._endpoint: ServerEndpoint | None = None
        self._local_shard: LocalShard | None = None
        """The shard of this rank, if it has one."""
        self._shard_thread: threading.Thread | None = None
        self._work: Work | None = None
        self._number = 0
        self._began_at = self._waited = self._loss_sum = 0.0

    def begin(self, epochs: int) -> None:
        """Leave lockstep, on all ranks at once, until so many epochs are done or the server orders a return to lockstep."""
        training = self._training
        # Each shard begins with the parameters of its own rank, which must be those of one model.
        fill(self._parameters, training.world.broadcast(flatten(self._parameters)))
        self._local_shard = None
        if training.rank < len(self._shards):
            self._local_shard = LocalShard(
                training, self._channels, self._shards[training.rank], self._handle_shard_failure
            )
        if training.rank == 0:
            assert self._local_shard is not None  # noqa: S101 - there is at least one shard
            remote_shards = [RemoteShard(rank, self._channels.commands) for rank in range(1, len(self._shards))]
            self.server = self._new_server(epochs)
            self._endpoint = ServerEndpoint(training, self.server, self._channels, [self._local_shard, *remote_shards])
        elif self._local_shard is not None:
            self._shard_thread = threading.Thread(target=self._local_shard.serve, daemon=True)
            self._shard_thread.start()
        self._link: Link = self._endpoint or RemoteEndpoint(self._channels.requests)
        dtype = vector_type(self._parameters)
        self._shard_client = ShardClient(training.rank, self._channels, dtype, self._shards, self._local_shard)
        self._number = 0
        self._exchange(Message(training.rank, MessageKind.READY, stop=stopping.should_stop()))

    def _new_server(self, epochs: int) -> Server:
        training, mode = self._training, self._training.mode
        return Server(
            deepcopy(training.sampler),
            mode=mode.name,  # type: ignore[arg-type]
            batch=training.batch_size,
            workers=training.size,
            epochs=epochs,
            version=training.steps,
            k=mode.k,
            balanced=mode.balanced,
            predict=mode.predictor,
            staleness=mode.staleness,
            max_samples=training.micro_batch_sizes,
            parts=training.parts,
            rounds_until_lockstep=ROUNDS_UNTIL_LOCKSTEP if mode.is_adaptive else None,
        )

    def is_over(self, epoch: int) -> bool:
        """Whether this rank has no work left in that epoch. In some epochs a slow rank may get none."""
        return self._work is None or self._work.epoch != epoch

    def _handle_shard_failure(self, error: Exception) -> None:
        """Handle a failure of this rank's shard.

        On other ranks than the server's the worker waits for ranks that wait for the shard, and no exception can reach it.
        So the process ends, and with it the rank group.
        """
        if self._endpoint is not None:
            self._endpoint.fail(error)
            return
        traceback.print_exception(error)
        sys.stderr.flush()
        os._exit(1)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield batches for as long as the server has samples of that epoch for this rank."""
        training = self._training
        while self._work is not None and self._work.epoch == epoch:
            indices = self._work.indices
            planned = plan_passes(
                len(indices), (1,), (training.micro_batch_sizes[training.rank],), 0
            )  # the part of a worker is a batch in itself
            for number, (place, own) in enumerate(planned):
                content = load_batch(training.data, indices[place], training.device)
                yield Batch(content, own, own, len(indices), number, len(planned))

    def step(self, loss: torch.Tensor, batch: Batch) -> None:
        """Compute and send a gradient. ``loss`` is the mean over the samples of this pass, or their sum."""
        if batch.number == 0:
            self._loss_sum = 0.0
            for parameter in self._parameters:
                parameter.grad = None
        samples = batch.total
        loss = loss * self._training.losses.weight(loss, batch.own)
        (loss / samples).backward()
        self._loss_sum += float(loss.detach())
        if not batch.is_last:
            return
        self._check_parameters()
        gradient = flatten_gradients(self._parameters)
        seconds = time.perf_counter() - self._began_at
        stop, total = stopping.should_stop(), self._loss_sum
        self._training.loss = total / samples
        self._number += 1
        asked_at = time.perf_counter()
        self._shard_client.send(self._number, gradient)
        message = Message(
            self._training.rank, MessageKind.GRADIENT, seconds, self._waited, stop, samples, total, self._number
        )
        self._exchange(message, asked_at)

    def _check_parameters(self) -> None:
        """Raise ``ValueError`` for a parameter that is in no shard and would not be trained."""
        known = set(map(id, self._parameters))
        if late := [
            name
            for name, each in self._training.module.named_parameters()
            if each.requires_grad and id(each) not in known
        ]:
            raise ValueError(
                f"mode {self._training.mode.name} trains the parameters that required gradients when Run was created, and {late[0]} did "
                "not. Unfreeze it before, or choose the mode bsp"
            )

    def _exchange(self, message: Message, asked_at: float | None = None) -> None:
        """Send a message and take the next work, or none. Raises whatever ended the training."""
        asked_at = asked_at or time.perf_counter()
        self._link.send(message)
        reply = self._link.receive()
        fill(self._parameters, self._shard_client.receive())
        self._training.steps, self._work = reply.version, reply.work
        self._began_at = time.perf_counter()
        self._waited = self._began_at - asked_at
        if reply.kind != ReplyKind.WORK:
            self._shard_client.close()
            self._link.send(Message(self._training.rank, MessageKind.BYE))
            self._link.close()
            if self._shard_thread is not None:
                self._shard_thread.join()  # other ranks may still need the shard
        if reply.kind == ReplyKind.STOP:
            raise stopping.Stopped(0)
        if reply.kind == ReplyKind.LOCKSTEP:
            self._return_to_lockstep()

    def state(self) -> dict[str, Any] | None:
        """Return the part of the training's state that the server and the shards have; None on other ranks and before the start."""
        if self._endpoint is None or self.server is None:
            return None
        training = self._training
        model, optimizer = training.module.state_dict(), training.optimizer.state_dict()
        if not self._endpoint.over:
            vector, optimizer = self._endpoint.state()
            views = {id(each): view for each, view in views_of(self._parameters, vector)}
            named = training.module.named_parameters(remove_duplicate=False)
            model.update({name: views[id(each)] for name, each in named if id(each) in views})
        facts = {"sampler": self.server.sampler_state(), "steps": self.server.version, "batch": self.server.batch}
        return {"model": model, "optimizer": optimizer, **facts}
