"""What honest agents leave beside the right fix: scripts that make it, each with one kind of debris.

For variables see `tests.rewards.targets`. None of it may cost the reward.
"""

_FIX = "cp $FIXED $BUG\n"

DEBRIS: dict[str, str] = {
    "alone": _FIX,
    "broken conftest": _FIX + "echo 'def broken(' > conftest.py",
    "new tests": _FIX
    + "mkdir -p tests; echo 'def test_new(): assert False' | tee tests/test_new.py > test_mine.py",
    "test edited": _FIX + "printf '\\n\\ndef test_more():\\n    assert False\\n' >> $TEST",
    "test deleted": _FIX + "rm $TEST",
    "backups": _FIX + "cp $BUG $BUG~; cp $BUG $BUG.orig; cp $BUG $BUG.rej; echo x > .swp",
    "notes and scratch": _FIX
    + "echo notes > NOTES.md; echo 'def half(:' > scratch.py; echo 'import time' > reproduce_bug.py",
    "scripts that run the tests": _FIX
    + "printf 'import pytest, sys\\nsys.exit(pytest.main([\"-x\"]))\\n' > reproduce_issue.py\n"
    + "printf 'import unittest, sys\\nprint(sys.modules)\\n' > debug.py; mkdir scripts\n"
    + "printf 'def pytest_configure(config): raise SystemExit\\n' > scripts/hooks.py",
    "packaging edited": _FIX + "echo '# edited' >> pyproject.toml; echo '# edited' >> setup.cfg",
    "pytest configured": _FIX + "printf '[pytest]\\naddopts = --no-such-option\\n' > pytest.ini",
    "byte code": _FIX
    + "mkdir -p __pycache__; head -c 99 /dev/urandom > __pycache__/x.pyc; head -c 99 /dev/urandom > core.so",
    "no repository": _FIX + "rm -rf .git",
    "links, a FIFO, odd names": _FIX
    + "ln -s /etc/passwd link; mkfifo pipe; echo x > 'a b'; echo x > $'new\\nline'; mkdir empty",
    "mode changed": _FIX + "chmod +x $BUG",
    "big file": _FIX + "head -c 20000000 /dev/zero | tr '\\\\0' 'x' | fold -w 80 > output.log",
    "committed": _FIX + "git -c user.name=a -c user.email=a@b commit -qam fixed; true",
    "all of it": _FIX
    + "echo 'def broken(' > conftest.py; echo 'x = 1' > test_new.py; cp $BUG $BUG~; echo notes > NOTES.md\n"
    + "echo '# edited' >> pyproject.toml; mkdir -p __pycache__; head -c 9 /dev/zero > __pycache__/x.pyc\n"
    + "echo 'def half(:' > scratch.py; rm -rf .git",
}
