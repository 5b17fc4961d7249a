"""Making a mount that is attached nowhere yet: fsopen(2), fsconfig(2) and fsmount(2).

Unlike mount(2) it takes a file for a source where the kernel does, and says in words what was wrong.
"""

import ctypes
import errno
import os

_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOSE_ON_EXEC = 1
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_LOG_BYTES = 4096

_libc = ctypes.CDLL(None, use_errno=True)


def mount_read_only(kind: str, source: str) -> int:
    """A detached read-only mount, as a descriptor; OSError carries the kernel's own words."""
    context = _call(_FSOPEN, kind.encode(), ctypes.c_uint(_CLOSE_ON_EXEC))
    try:
        _configure(context, _SET_STRING, b"source", os.fsencode(source))
        _configure(context, _SET_FLAG, b"ro", None)
        _configure(context, _CREATE, None, None)
        return _call(_FSMOUNT, ctypes.c_int(context), ctypes.c_uint(_CLOSE_ON_EXEC), ctypes.c_uint(0))
    except OSError as error:
        raise OSError(error.errno, _log(context) or error.strerror) from error
    finally:
        os.close(context)


def openable(kinds: tuple[str, ...]) -> list[str]:
    """Those file systems that this process may begin to mount; OSError when that is none."""
    found: list[str] = []
    for kind in kinds:
        try:
            os.close(_call(_FSOPEN, kind.encode(), ctypes.c_uint(_CLOSE_ON_EXEC)))
            found.append(kind)
        except OSError:
            continue  # not in this kernel, or not for us
    if not found:
        raise OSError(errno.ENODEV, f"none of {', '.join(kinds)}")
    return found


def _configure(context: int, command: int, key: bytes | None, value: bytes | None) -> None:
    _call(_FSCONFIG, ctypes.c_int(context), ctypes.c_uint(command), key, value, ctypes.c_int(0))


def _log(context: int) -> str:
    """Messages of the kernel about this mount, one a read, until ENODATA."""
    lines: list[str] = []
    try:
        while len(lines) < 16 and (text := os.read(context, _LOG_BYTES)):
            lines.append(text.decode("utf-8", "replace")[2:].strip())
    except OSError:
        pass  # no more of them
    return "; ".join(lines)


def _call(number: int, *arguments: object) -> int:
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
