"""Start programs by fork and exec. Not by subprocess: importing it takes longer than everything else that an agent imports."""

from __future__ import annotations

import errno
import os

from orchestrator.node.system.fast_stdlib import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Mapping, NoReturn, Optional, Sequence

STDERR = 2
NOT_STARTED = 127  # the exit code of a child that could not run its program; the parent reports the error
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def spawn(
    argv: Sequence[str],
    environment: Mapping[bytes, bytes],
    output: tuple[int, int],
    prepare: Callable[[], None],
    *,
    inherited: Sequence[int] = (),
) -> int:
    """
    Start a program with an empty standard input and no other open file; return its pid. OSError if it cannot be started.

    Args:
        output: file descriptors for its stdout and stderr.
        prepare: is called in the new process first.
        inherited: file descriptors that it keeps, if they are inheritable.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            prepare()
            redirect(*output, keep=(writer, *inherited))
            for number in IGNORED_BY_PYTHON:
                signal.signal(number, signal.SIG_DFL)
            execute(argv, environment)
        except OSError as error:
            os.write(writer, f"{error.errno} {error.strerror}".encode(errors="backslashreplace"))
        except ValueError as error:  # an argument with a null byte, or with a character that the locale cannot encode
            os.write(writer, f"{errno.EINVAL} {error}".encode(errors="backslashreplace"))
        finally:
            os._exit(NOT_STARTED)
    os.close(writer)
    error_number, _, text = os.read(reader, 1 << 10).decode().partition(" ")  # empty once the program runs
    os.close(reader)
    if error_number:
        os.waitpid(pid, 0)
        raise OSError(int(error_number), text, argv[0])
    return pid


def redirect(stdout: int, stderr: int, *, keep: Sequence[int] = ()) -> None:
    """Set the standard streams of this process, stdin to /dev/null, and close all other descriptors except those in `keep`."""
    null = os.open(os.devnull, os.O_RDONLY)
    for standard, descriptor in enumerate((null, stdout, stderr)):
        os.dup2(descriptor, standard)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > STDERR and int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:  # that of listdir
                continue


def execute(argv: Sequence[str], environment: Mapping[bytes, bytes]) -> NoReturn:
    """Become the program, which is searched on the PATH in `environment`."""
    failure: Optional[OSError] = None
    for path in candidates(argv[0], os.fsdecode(environment.get(b"PATH", os.fsencode(os.defpath)))):
        try:
            os.execve(path, list(argv), environment)  # noqa: S606  argv is a list of words
        except (FileNotFoundError, NotADirectoryError) as error:
            failure = failure or error
        except OSError as error:
            failure = error
    assert failure is not None, "there is at least one candidate"
    raise failure


def find_program(name: str, path: str) -> Optional[str]:
    """The executable file with that name on a PATH, or at that path; None if there is none."""
    found = (file for file in candidates(name, path) if os.path.isfile(file) and os.access(file, os.X_OK))
    return next(found, None)


def candidates(name: str, path: str) -> List[str]:
    return [name] if "/" in name else [os.path.join(folder, name) for folder in path.split(":")]
