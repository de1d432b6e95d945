"""Found first by every Python that a rank starts: teaches Horovod's workers to ask for news instead of taking calls.

Horovod has each elastic worker open a port and send its address as a pickle, and pickles come back on that port. Here
the worker asks the forwarder on its own loopback, which answers when hosts were added or removed, in JSON. And it tells
how long a change of the ring has kept it from training. A rank that was started before its ring could have it asks for
its place when it begins. A rank of torchrun's kind, which a change ends, leaves the times of its steps behind (``stepclock``).
One that has a group of torch's ends only when the group's threads rest. Whether ranks join each other at all is left in
marks (``joining``). A ``sitecustomize`` that this one hides is run
afterwards.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing would take longer to import than all the rest
    from typing import Any

WORKER = "horovod.runner.elastic.worker"
STATE = "horovod.common.elastic"
BASICS = "horovod.common.basics"
OPTIMIZER = "torch.optim.optimizer"
COLLECTIVES = "torch.distributed.distributed_c10d"
STEPS_VARIABLE = "SCHEDULEARN_STEPS"
NEWCOMER = "SCHEDULEARN_NEWCOMER"
JOINING = "SCHEDULEARN_JOINING"
SURE_STEPS = 20  # of an optimizer: a rank that has made so many without the others trains alone
USUAL = 5  # steps, of whose times the middle one is the usual
HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - in every Python's start: no pathlib
SETTLING = os.path.join(HERE, "..", "..", "training", "schedulearn_train", "settling.py")  # noqa: PTH118


def ask_for_news(manager: Any, host: str, slot: str, port: int) -> None:
    """Runs for as long as the rank does. ``manager`` is Horovod's WorkerNotificationManager."""
    import http.client
    import json
    import time

    seen = 0
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", f"/hosts_updated/{host}:{slot}:{seen}")
            response = connection.getresponse()
            news = json.loads(response.read()) if response.status == 200 else None
            connection.close()
        except (OSError, http.client.HTTPException, ValueError):
            news = None
        if news is None:
            time.sleep(1)
        elif news["seen"] > seen:
            if news.get("alive"):
                give_up_others(news["alive"])
            if not news["result"]:
                seen = news["seen"]
                continue
            while not manager._listeners:  # the training function has not been entered yet
                time.sleep(0.05)
            seen = news["seen"]
            manager.handle_hosts_updated(news["timestamp"], news["result"])


def ask_for_place() -> dict[str, str]:
    """Waits until the ring has this rank; its variables."""
    import http.client
    import json
    import time

    port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    place = f"{os.environ['HOROVOD_HOSTNAME']}:{os.environ['HOROVOD_LOCAL_RANK']}"
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", f"/first_place/{place}")
            response = connection.getresponse()
            answer = response.read()
            connection.close()
            if response.status == 200:
                return json.loads(answer)
        except (OSError, http.client.HTTPException, ValueError):
            pass
        time.sleep(1)  # another driver may come


def leave_mark(what: str) -> None:
    """For the supervisor, which looks whether the file is there."""
    try:
        os.close(os.open(f"{os.environ[JOINING]}.{what}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except (KeyError, OSError):
        pass  # a hint is not worth a training


def is_one_of_several() -> bool:
    """Whether this Python belongs to a rank, by what launchers say of their ranks; torchrun itself is none."""
    return os.environ.get("HOROVOD_SIZE", os.environ.get("WORLD_SIZE", "1")) != "1"


def note_training(module: Any) -> None:
    """Leaves a mark when this process trains, which says something only where no rank has joined the others."""
    if not is_one_of_several() or not hasattr(module, "register_optimizer_step_post_hook"):  # torch has it since 2.0
        return
    count = 0

    def note(*_step: object) -> None:
        nonlocal count
        count += 1
        if count == SURE_STEPS:
            leave_mark("trains-alone")

    module.register_optimizer_step_post_hook(note)


def note_horovod(module: Any) -> None:
    """Leaves a mark when Horovod begins."""
    init = module.HorovodBasics.init

    def noted_init(self: Any, *args: object, **kwargs: object) -> None:
        leave_mark("joined")
        init(self, *args, **kwargs)

    module.HorovodBasics.init = noted_init


def wait_for_place(module: Any) -> None:
    """Horovod reads who it is from its variables when it first begins."""
    if not os.environ.get(NEWCOMER):
        return
    init = module.HorovodBasics.init

    def first_init(self: Any, *args: object, **kwargs: object) -> None:
        module.HorovodBasics.init = init
        if os.environ.pop(NEWCOMER, ""):  # not before: a process that this one starts meanwhile may begin instead
            os.environ.update(ask_for_place())
        init(self, *args, **kwargs)

    module.HorovodBasics.init = first_init


def give_up_others(alive: list[str]) -> None:
    """Ends the connections to all but these: the other end has gone without a word, and Gloo would wait for it."""
    import socket

    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):  # noqa: PTH115
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family == socket.AF_INET and connection.getpeername()[0] not in (*alive, "127.0.0.1"):
                    connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # closed meanwhile, or not connected


def tell_cost(seconds: float) -> None:
    """To the driver, by the forwarder. Nobody waits for it."""
    import http.client
    import threading

    port = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT")
    place = f"{os.environ.get('HOROVOD_HOSTNAME')}:{os.environ.get('HOROVOD_LOCAL_RANK')}"

    def ask() -> None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", int(port or 0), timeout=60)
            connection.request("GET", f"/went_on/{place}:{round(seconds * 1000)}")
            connection.getresponse()
            connection.close()
        except (OSError, http.client.HTTPException, ValueError):
            pass  # it is only told, not needed

    threading.Thread(target=ask, daemon=True).start()


def count_cost(module: Any) -> None:
    """From the last look at the hosts before a change (that is, a commit) to the first one after it, less a usual step."""
    import time

    check, reset = module.State.check_host_updates, module.State.on_reset
    last, changed = 0.0, False  # of this rank: it has one state at a time
    usual: list[float] = []

    def check_host_updates(self: Any) -> None:
        nonlocal last, changed
        now, before = time.monotonic(), last
        last = now
        if changed and before:
            step = sorted(usual)[len(usual) // 2] if usual else 0.0
            tell_cost(max(0.0, now - before - step))
        elif before:
            usual[:] = [*usual[1 - USUAL :], now - before]
        changed = False
        check(self)

    def on_reset(self: Any) -> None:
        nonlocal changed
        changed = True
        reset(self)

    module.State.check_host_updates, module.State.on_reset = check_host_updates, on_reset
    report_errors(module)


def report_errors(module: Any) -> None:
    """Print what made a ring fail: Horovod restarts it silently."""
    import functools

    run_fn = module.run_fn

    def run_fn_with_report(func: Any, reset: Any) -> Any:
        @functools.wraps(func)
        def reported(*args: Any, **kwargs: Any) -> Any:
            try:
                return func(*args, **kwargs)
            except module.HorovodInternalError as error:
                sys.stderr.write(f"The ring failed and is restarted: {error}\n")
                sys.stderr.flush()
                raise

        return run_fn(reported, reset)

    module.run_fn = run_fn_with_report


def note_steps(module: Any) -> None:
    """Writes the times of the first and the last step, and how many there were, to the file that the supervisor reads.

    The process that makes the first step is the rank; others that it starts may have optimizers of their own.
    """
    import struct
    import time

    path = os.environ.get(STEPS_VARIABLE)
    if not path or not hasattr(module, "register_optimizer_step_post_hook"):  # torch has it since 2.0
        return
    owner, file, first, count = os.getpid(), -1, 0.0, 0

    def note(*_step: object) -> None:
        nonlocal file, first, count
        if os.getpid() != owner:
            return
        now = time.monotonic()
        count += 1
        try:
            if count == 1:
                first = now
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            if file >= 0:
                os.pwrite(file, struct.pack("=ddq", first, now, count), 0)
        except OSError:
            pass  # it is only told, not needed

    module.register_optimizer_step_post_hook(note)


def end_settled(module: Any) -> None:
    """Whoever begins a group waits for the group's threads when Python ends. The training library's ``settling`` tells why."""
    import atexit
    import functools

    init = module.init_process_group

    @functools.wraps(init)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        atexit.unregister(settle)
        atexit.register(settle)
        leave_mark("joined")
        return init(*args, **kwargs)

    module.init_process_group = init_process_group


def settle() -> None:
    """The training library's, read from its file: the job may not import the library, or bring another one."""
    spec: Any = importlib.util.spec_from_file_location("settling", SETTLING)
    settling = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(settling)
    settling.settle()


def teach(module: Any) -> None:
    """Replaces what would open a port and send a pickle."""
    import threading

    def init(self: Any, *_args: object, **_kwargs: object) -> None:
        with self._lock:
            port = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT")
            if self._service or not port:
                return
            place = (os.environ["HOROVOD_HOSTNAME"], os.environ["HOROVOD_LOCAL_RANK"])
            self._service = threading.Thread(target=ask_for_news, args=(self, *place, int(port)), daemon=True)
            self._service.start()

    module.WorkerNotificationManager.init = init


def begin_horovod(module: Any) -> None:
    wait_for_place(module)
    note_horovod(module)


def watch_optimizers(module: Any) -> None:
    note_steps(module)
    note_training(module)


class Finder(importlib.abc.MetaPathFinder):
    """Finds Horovod's modules as they would be found without us, and teaches each once it is loaded."""

    def __init__(self) -> None:
        self.lessons = {
            WORKER: teach,
            STATE: count_cost,
            BASICS: begin_horovod,
            OPTIMIZER: watch_optimizers,
            COLLECTIVES: end_settled,
        }

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        lesson = self.lessons.pop(name, None)
        if lesson is None:
            return None
        spec: Any = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            lesson(module)

        spec.loader.exec_module = exec_module
        return spec


def run_hidden() -> None:
    """The site's own sitecustomize, if there is one."""
    others = [place for place in sys.path if os.path.abspath(place or ".") != HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if is_one_of_several():
    leave_mark("started")
sys.meta_path.insert(0, Finder())
run_hidden()
