"""Runs first in every Python that a job starts: changes Horovod's workers so that they ask for host updates.

Horovod has each elastic worker open a port and send its address as a pickle, and it receives pickles on that port. Here
the worker asks the forwarder on its own loopback, which answers in JSON when hosts were added or removed. The worker also
reports how long a change kept it from training. A rank that was started before its group was ready for it asks for its
place when it begins. A torchrun rank, which ends at a change, records the times of its steps (``restart_costs``). A rank
with a process group of torch ends only when the threads of that group are idle. Marks show whether ranks join each other
at all (``joining``). The modules of the upload are importable from its top and from ``src``, where it has no mere source of
an installed package. The packages of the environment's layer follow those of its base. Ranks that a plain command starts
share its threads. A ``sitecustomize`` that is hidden by this one runs afterwards.
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
ASKS_FOR_PLACE = "SCHEDULEARN_NEWCOMER"
JOINING = "SCHEDULEARN_JOINING"
THREADS = "SCHEDULEARN_THREADS"
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "HOROVOD_LOCAL_SIZE")  # of torchrun, DeepSpeed and Horovod
ALONE_AFTER_STEPS = 20  # of an optimizer: a rank that has made so many without the others trains alone
MEDIAN_STEPS = 5  # steps, whose median time is that of a usual step
HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - in every Python's start: no pathlib
SETTLING = os.path.join(HERE, "..", "..", "training", "schedulearn_train", "settling.py")  # noqa: PTH118


def follow_host_updates(manager: Any, host: str, slot: str, port: int) -> None:
    """Ask for host updates as long as the rank runs. ``manager`` is Horovod's WorkerNotificationManager."""
    import http.client
    import json
    import time

    seen = 0
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", f"/hosts_updated/{host}:{slot}:{seen}")
            response = connection.getresponse()
            update = json.loads(response.read()) if response.status == 200 else None
            connection.close()
        except (OSError, http.client.HTTPException, ValueError):
            update = None
        if update is None:
            time.sleep(1)
        elif update["seen"] > seen:
            if update.get("alive"):
                drop_connections(update["alive"])
            if not update["result"]:
                seen = update["seen"]
                continue
            while not manager._listeners:  # the training function has not been entered yet
                time.sleep(0.05)
            seen = update["seen"]
            manager.handle_hosts_updated(update["timestamp"], update["result"])


def ask_for_place() -> dict[str, str]:
    """Wait until a group has this rank, and return its variables."""
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
                first: dict[str, str] = json.loads(answer)
                return first
        except (OSError, http.client.HTTPException, ValueError):
            pass
        time.sleep(1)  # another driver may take over


def leave_mark(what: str) -> None:
    """Leave a mark for the supervisor, which checks whether the file exists."""
    try:
        os.close(os.open(f"{os.environ[JOINING]}.{what}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except (KeyError, OSError):
        pass  # a missing mark must not end the training


def is_one_of_several() -> bool:
    """Whether this Python belongs to one of several ranks, by the launchers' variables; torchrun itself is not a rank."""
    return os.environ.get("HOROVOD_SIZE", os.environ.get("WORLD_SIZE", "1")) != "1"


def mark_training(module: Any) -> None:
    """Leave a mark when this process trains. It matters only where no rank has joined the others."""
    if not is_one_of_several() or not hasattr(module, "register_optimizer_step_post_hook"):  # torch has it since 2.0
        return
    count = 0

    def note(*_step: object) -> None:
        nonlocal count
        count += 1
        if count == ALONE_AFTER_STEPS:
            leave_mark("trains-alone")

    module.register_optimizer_step_post_hook(note)


def mark_horovod(module: Any) -> None:
    """Leave a mark when Horovod starts."""
    init = module.HorovodBasics.init

    def init_with_mark(self: Any, *args: object, **kwargs: object) -> None:
        leave_mark("joined")
        init(self, *args, **kwargs)

    module.HorovodBasics.init = init_with_mark


def wait_for_place(module: Any) -> None:
    """Have a rank ask for its place when Horovod first starts and reads its variables."""
    if not os.environ.get(ASKS_FOR_PLACE):
        return
    init = module.HorovodBasics.init

    def first_init(self: Any, *args: object, **kwargs: object) -> None:
        module.HorovodBasics.init = init
        if os.environ.pop(ASKS_FOR_PLACE, ""):  # not before: a process that this one starts meanwhile may begin instead
            os.environ.update(ask_for_place())
        init(self, *args, **kwargs)

    module.HorovodBasics.init = first_init


def drop_connections(alive: list[str]) -> None:
    """Close the connections to all addresses but these: the peers are gone, and Gloo would wait for them."""
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


def report_cost(seconds: float) -> None:
    """Send a cost to the driver through the forwarder, without waiting for the answer."""
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
            pass  # the report is not essential

    threading.Thread(target=ask, daemon=True).start()


def measure_change_cost(module: Any) -> None:
    """Measure the time from the last check of the hosts before a change, at a commit, to the first one after it, less a usual
    step."""
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
            report_cost(max(0.0, now - before - step))
        elif before:
            usual[:] = [*usual[1 - MEDIAN_STEPS :], now - before]
        changed = False
        check(self)

    def on_reset(self: Any) -> None:
        nonlocal changed
        changed = True
        reset(self)

    module.State.check_host_updates, module.State.on_reset = check_host_updates, on_reset
    report_errors(module)


def report_errors(module: Any) -> None:
    """Print the error of the ranks: Horovod restarts them silently."""
    import functools

    run_fn = module.run_fn

    def run_fn_with_report(func: Any, reset: Any) -> Any:
        @functools.wraps(func)
        def reported(*args: Any, **kwargs: Any) -> Any:
            try:
                return func(*args, **kwargs)
            except module.HorovodInternalError as error:
                sys.stderr.write(f"The ranks failed and are restarted: {error}\n")
                sys.stderr.flush()
                raise

        return run_fn(reported, reset)

    module.run_fn = run_fn_with_report


def record_steps(module: Any) -> None:
    """Write the times of the first and the last step and the number of steps to the file that the supervisor reads.

    The process that makes the first step is the rank; others that it starts may have their own optimizers.
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
            pass  # the report is not essential

    module.register_optimizer_step_post_hook(note)


def settle_at_exit(module: Any) -> None:
    """Have each process with a group wait for the group's threads when Python ends; ``settling`` of the training library has
    the reason."""
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
    """Call the training library's ``settle``, read from its file: the job may not import the library, or have another one."""
    spec: Any = importlib.util.spec_from_file_location("settling", SETTLING)
    settling = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(settling)
    settling.settle()


def patch_worker(module: Any) -> None:
    """Replace what would open a port and send a pickle."""
    import threading

    def init(self: Any, *_args: object, **_kwargs: object) -> None:
        with self._lock:
            port = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT")
            if self._service or not port:
                return
            place = (os.environ["HOROVOD_HOSTNAME"], os.environ["HOROVOD_LOCAL_RANK"])
            self._service = threading.Thread(target=follow_host_updates, args=(self, *place, int(port)), daemon=True)
            self._service.start()

    module.WorkerNotificationManager.init = init


def patch_horovod_init(module: Any) -> None:
    wait_for_place(module)
    mark_horovod(module)


def patch_optimizers(module: Any) -> None:
    record_steps(module)
    mark_training(module)


class Finder(importlib.abc.MetaPathFinder):
    """Finds modules of Horovod and torch as usual, and changes each once it is loaded."""

    def __init__(self) -> None:
        self.patches = {
            WORKER: patch_worker,
            STATE: measure_change_cost,
            BASICS: patch_horovod_init,
            OPTIMIZER: patch_optimizers,
            COLLECTIVES: settle_at_exit,
        }

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        patch = self.patches.pop(name, None)
        if patch is None:
            return None
        spec: Any = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            patch(module)

        spec.loader.exec_module = exec_module
        return spec


class CompiledPackages(importlib.abc.MetaPathFinder):
    """Finds an installed package that has compiled parts in place of its mere source in the upload, which cannot work.

    The examples in the repository of Horovod run with the installed Horovod, as they do everywhere else.
    """

    def __init__(self, places: list[str]) -> None:
        self.places = places

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if path is not None:
            return None
        uploaded = [os.path.join(place, name) for place in self.places]  # noqa: PTH118
        uploaded = [each for each in uploaded if os.path.isfile(os.path.join(each, "__init__.py"))]  # noqa: PTH113, PTH118
        if not uploaded:
            return None
        ours = [os.path.realpath(place) for place in self.places]
        others = [place for place in sys.path if os.path.realpath(place) not in ours]
        spec = importlib.machinery.PathFinder.find_spec(name, others)
        installed = spec.submodule_search_locations if spec is not None else None
        return spec if any(is_source_of(uploaded[0], folder) for folder in installed or ()) else None


def is_source_of(uploaded: str, installed: str) -> bool:
    """Whether a package is another one without its compiled parts, of whatever release; not just one of the same name."""
    if not has_compiled_parts(installed) or has_compiled_parts(uploaded):
        return False
    expected = {name for name in os.listdir(installed) if name != "__pycache__" and not name.endswith(".so")}  # noqa: PTH208
    return 2 * len(expected.intersection(os.listdir(uploaded))) > len(expected)  # noqa: PTH208


def has_compiled_parts(folder: str) -> bool:
    return any(file.endswith(".so") for _, _, files in os.walk(folder) for file in files)


def find_modules_of_upload() -> None:
    """Let scripts in folders of the upload import its modules, from its top and from ``src``.

    They come after the standard library, which no file of the upload can replace by accident, and before installed packages.
    """
    workspace = os.environ.get("SCHEDULEARN_WORKSPACE")
    if not workspace:
        return
    places = [workspace, os.path.join(workspace, "src")]  # noqa: PTH118
    sys.meta_path.insert(0, CompiledPackages(places))
    installed = (number for number, place in enumerate(sys.path) if place.endswith(("site-packages", "dist-packages")))
    first = next(installed, len(sys.path))
    sys.path[first:first] = [place for place in places if place not in sys.path and os.path.isdir(place)]  # noqa: PTH112


def add_layer() -> None:
    """Let Python find the packages of the environment's layer, after those of its base: a layer never replaces these."""
    if layer := os.environ.get("SCHEDULEARN_LAYER"):
        import site

        site.addsitedir(layer)


def share_threads() -> None:
    """Divide the threads of a plain command among the ranks that torchrun, DeepSpeed or horovodrun has started in it."""
    threads = os.environ.get(THREADS, "")
    if not threads.isdecimal() or os.environ.get("OMP_NUM_THREADS") != threads:
        return
    for name in LOCAL_SIZES:
        ranks = os.environ.get(name, "")
        if ranks.isdecimal() and int(ranks) > 1:
            os.environ["OMP_NUM_THREADS"] = str(max(1, int(threads) // int(ranks)))
            return


def run_hidden_sitecustomize() -> None:
    """Run the site's own sitecustomize, if there is one."""
    others = [place for place in sys.path if os.path.abspath(place or ".") != HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if is_one_of_several():
    leave_mark("started")
share_threads()
sys.meta_path.insert(0, Finder())
add_layer()
find_modules_of_upload()
run_hidden_sitecustomize()
