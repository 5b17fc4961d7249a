"""Errors of the sandbox and of its cache of environments.

A `SandboxError` is always *our* fault or the machine's. A command of the agent that fails is
not an error: it is an `ExecResult` with a non-zero status. Nothing here knows of rewards or RL.
"""


class SandboxError(Exception):
    """The sandbox, not the command in it, failed."""


class SandboxUnavailableError(SandboxError):
    """This machine cannot run the backend; the message says what to change."""


class SandboxStartError(SandboxError):
    """A sandbox could not be opened (mounts, namespaces, limits)."""


class SandboxLostError(SandboxError):
    """An open sandbox died under us (its init, its helper, or its session is gone)."""


class CacheError(SandboxError):
    """A cached environment is missing, incomplete or could not be built."""


class StoreAddressError(CacheError):
    """The address of a store is none that can be used here: an unknown scheme, or its library is missing."""
