"""Options of two plugins that projects name in their own configuration, and that no grading may follow.

pytest-xdist would run tests in processes that nobody watches, pytest-cov slows them down, and without plugins
found by entry points pytest does not even know their options. So they are taken out of the command line, the
project's `addopts` included. Python 3.6 and later.
"""

# pyright: basic
XDIST = frozenset((
    "-n", "--numprocesses", "--maxprocesses", "--max-worker-restart", "--dist", "--tx", "--rsyncdir",
    "--rsyncignore", "--testrunuid", "--maxschedchunk",
))  # fmt: skip
COV = frozenset(("--cov-report", "--cov-config", "--cov-fail-under", "--cov-context"))
COV_ALONE = frozenset(("--no-cov", "--no-cov-on-fail", "--cov-append", "--cov-branch", "--cov-reset"))


def without(args, with_value, alone=(), maybe=()):
    """The words without these options and their values; `maybe` take the next word if it is no option."""
    kept, words = [], list(args)
    while words:
        word = words.pop(0)
        name, _, joined = word.partition("=")
        if name in with_value:
            if not joined and words:
                words.pop(0)
        elif name in maybe:
            if not joined and words and not words[0].startswith("-"):
                words.pop(0)
        elif not (word in alone or word[:2] in with_value):
            kept.append(word)
    return kept


def settle(config, args):
    """Changes pytest's command line in place, once it has loaded its plugins."""
    loaded = {name.split(".")[0] for name, plugin in config.pluginmanager.list_name_plugin() if plugin}
    args[:] = without(args, XDIST, () if "xdist" in loaded else ("-d",))
    if "xdist" in loaded:
        args.append("-n0")
    if "pytest_cov" not in loaded:
        args[:] = without(args, COV, COV_ALONE, ("--cov",))
