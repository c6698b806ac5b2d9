"""What a forked process does to be like one that was started: `become`, then `finish`, which runs its program.

Invariant: arguments, environment, directory, open files, cores, limits, priority, mask of files, signals and process
group are those of the client, which the kernel has given to it; `__main__`, `sys.path`, the standard streams and random
numbers are new. The program ends as in Python: threads are waited for, callbacks of `atexit` run, what `__main__` holds
is released, and streams are flushed. Modules are not taken apart, which would copy all memory of the parent.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import io
import os
import random
import resource
import runpy
import signal
import sys
import threading
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tests.warm.server import SPACES, options

if TYPE_CHECKING:
    from tests.warm.server import Started

_PR_SET_PDEATHSIG = 1
_FAR = 1000  # the number of a file that no client has
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


def become(asked: Started, own: Mapping[str, str]) -> Callable[[], Any]:
    """Make this process what the client was started as; returns what it has to run. `own`: as in `serve`."""
    _take_files(asked.files)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != asked.parent:
        os._exit(128 + signal.SIGKILL)
    _take_place(asked.client, asked.umask)
    _take_signals(asked.ignored, asked.blocked)
    changed = {name: value for name, value in os.environ.items() if own.get(name) != value}  # by the modules
    os.environ.clear()
    os.environ.update(asked.environment | changed)
    _random_again()
    chosen, arguments = options(asked.command)
    sys.orig_argv[:] = asked.command
    paths = "" if "-I" in chosen else os.environ.get("PYTHONPATH", "")
    sys.path[:] = dict.fromkeys([*map(os.path.abspath, paths.split(os.pathsep) if paths else ()), *sys.path])
    _open_streams("-u" in chosen or ("-I" not in chosen and bool(os.environ.get("PYTHONUNBUFFERED"))))
    return _program(arguments, isolated="-I" in chosen)


def _take_files(files: Mapping[int, int]) -> None:
    """Each gets the number that it has in the client."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    far = {number: fcntl.fcntl(here, fcntl.F_DUPFD, _FAR) for number, here in files.items()}
    os.closerange(0, _FAR)
    for number, here in far.items():
        os.dup2(here, number)
        os.close(here)


def _join(client: int) -> None:
    """The namespaces of a process."""
    for name in SPACES:
        path = f"/proc/{client}/ns/{name}"
        if os.readlink(path) != os.readlink(f"/proc/self/ns/{name}"):
            with open(path) as space:
                assert ctypes.CDLL(None, use_errno=True).setns(space.fileno(), 0) == 0, os.strerror(ctypes.get_errno())


def _take_place(client: int, umask: int) -> None:
    _join(client)
    group = os.getpgid(client)
    try:
        os.setpgid(0, group)
    except PermissionError:  # of another session
        os.setsid()
    os.sched_setaffinity(0, os.sched_getaffinity(client))
    for limit in _LIMITS:
        resource.setrlimit(limit, resource.prlimit(client, limit))
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, client))
    os.chdir(f"/proc/{client}/cwd")
    os.umask(umask)


def _take_signals(ignored: int, blocked: int) -> None:
    """Python handles SIGINT, and ignores two signals by itself."""
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            with contextlib.suppress(OSError):
                signal.signal(number, signal.SIG_IGN if ignored >> number - 1 & 1 else signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if not ignored >> signal.SIGINT - 1 & 1:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [n for n in range(1, signal.NSIG) if blocked >> n - 1 & 1])


def _random_again() -> None:
    """New processes have random numbers of their own, where nothing has set a seed."""
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None and "numpy.random" in sys.modules:
        numpy.random.seed()


def _open_streams(unbuffered: bool) -> None:
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old, stream = getattr(sys, f"__{name}__"), None
        with contextlib.suppress(OSError):  # it is closed
            size = 0 if unbuffered and number > 0 else -1
            raw = open(number, "wb" if number > 0 else "rb", size, closefd=False)  # noqa: SIM115
            at_once = not unbuffered and (number == 2 or raw.isatty())
            stream = io.TextIOWrapper(raw, old.encoding, old.errors, line_buffering=at_once, write_through=unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _program(arguments: list[str], isolated: bool) -> Callable[[], Any]:
    """What `python *arguments` runs, in a new `__main__`."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__)
    sys.modules["__main__"] = main
    match arguments:
        case ["-c", code, *rest]:
            sys.argv[:] = ["-c", *rest]
            sys.path[:0] = [] if isolated else [""]
            return lambda: exec(compile(code, "<string>", "exec", dont_inherit=True), main.__dict__)
        case ["-m", name, *rest]:
            sys.argv[:] = ["-m", *rest]
            sys.path[:0] = [] if isolated else [os.getcwd()]
            sys.modules.pop(name, None)  # it is run from its beginning
            return lambda: runpy._run_module_as_main(name)  # type: ignore[attr-defined]
    script = arguments[0]
    sys.argv[:] = arguments
    sys.path[:0] = [] if isolated else [os.path.dirname(os.path.abspath(script))]
    main.__dict__.update(__file__=script)
    return lambda: exec(compile(Path(script).read_bytes(), script, "exec", dont_inherit=True), main.__dict__)


def finish(run: Callable[[], Any]) -> NoReturn:
    """Run the program, and end as a process of Python does."""
    status = 0
    try:
        run()
    except SystemExit as request:
        status = _status_of(request)
    except BaseException as error:
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
            traceback = traceback.tb_next
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        del traceback
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for name in ("last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)
    if threading.active_count() == 1:  # daemons go on, and may need it
        sys.modules["__main__"].__dict__.clear()
        gc.collect()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            status = status or 120
    ctypes.CDLL(None).fflush(None)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)


def _status_of(request: SystemExit) -> int:
    if request.code is None or isinstance(request.code, int):
        return request.code or 0
    print(request.code, file=sys.stderr)
    return 1
