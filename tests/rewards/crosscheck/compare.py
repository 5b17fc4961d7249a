"""Compares our log parsers with those of swebench 4.1.0 on recorded logs. Needs swebench installed.

python tests/rewards/crosscheck/compare.py psf/requests=pytest=LOG django/django=django=LOG ...
"""

import sys
from pathlib import Path

WORDS = {"passed": "PASSED", "failed": "FAILED", "error": "ERROR", "skipped": "SKIPPED", "xfailed": "XFAIL"}


def compare(repo: str, name: str, text: str) -> int:
    """Prints the differences; returns how many there are."""
    from swebench.harness.log_parsers import MAP_REPO_TO_PARSER

    from rewards.logs import parser_of

    theirs, ours = MAP_REPO_TO_PARSER[repo](text, None), parser_of(name)(text)
    known = {test_id: {status} for test_id, status in ours.statuses.items()}
    for alias, ids in ours.aliases.items():
        known.setdefault(alias, {ours.statuses[test_id] for test_id in ids})
    differ = {
        test_id: (status, known.get(test_id))
        for test_id, status in theirs.items()
        if {WORDS.get(word) for word in known.get(test_id, ())} != {status}
    }
    sys.stdout.write(f"{repo}: swebench {len(theirs)} ids, ours {len(ours.statuses)}, differ {len(differ)}\n")
    sys.stdout.writelines(f"  {test_id}: {pair}\n" for test_id, pair in differ.items())
    return len(differ)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    words = [argument.split("=", 2) for argument in sys.argv[1:]]
    total = sum(compare(repo, name, Path(path).read_text()) for repo, name, path in words)
    raise SystemExit(total > 0)
