"""A pytest plugin for a pytest that some other command (tox, make, a script) started: joins it to the grader.

Loaded by `-p` before any code of the project. The supervisor hands its request to one process only; a second
one that asks makes the whole run worthless.
"""

# pyright: basic, reportRedeclaration=false, reportArgumentType=false, reportAttributeAccessIssue=false
import json
import os
import socket

import pytest
from grader_channel import make_send  # pyright: ignore
from grader_options import settle  # pyright: ignore
from grader_pytest import Before, make_plugin  # pyright: ignore


def fetch():
    """The request, and the connection that reports go to."""
    link = socket.socket(socket.AF_UNIX)
    link.connect("\0" + os.environ["GRADER_CHANNEL"])
    text = b""
    while not text.endswith(b"\n"):
        part = link.recv(65536)
        if not part:
            raise SystemExit("the grader refused to be asked twice")
        text += part
    return json.loads(text.decode()), link.detach()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config, args):
    settle(early_config, args)
    # Before any conftest.py, and with it the product, is imported.
    early_config.grader_before = Before(early_config.known_args_namespace.rootdir or os.getcwd())


def pytest_configure(config):
    request, handle = fetch()
    send = make_send(handle, bytes.fromhex(request.pop("key")))
    recorder = make_plugin(pytest, request, send, config.grader_before)
    send("ready")

    class End:
        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_sessionfinish(self, exitstatus):
            yield
            recorder.finish(int(exitstatus))

    config.pluginmanager.register(recorder)
    config.pluginmanager.register(End())
