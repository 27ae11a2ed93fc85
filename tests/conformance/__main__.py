"""`python -m tests.conformance [FILE]`: run the cases of a file; exit with 1 if one of them fails."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conformance import runner


def main(arguments: list[str]) -> int:
    if len(arguments) > 1 or arguments[:1] in (["-h"], ["--help"]):
        sys.stdout.write(f"{__doc__}\n")
        return 2
    path = Path(arguments[0]) if arguments else runner.CASES
    operations, outside = runner.adapters()
    outcomes = [runner.run(case, operations, outside) for case in runner.read(path)]
    sys.stdout.writelines(f"{line}\n" for line in runner.report(outcomes))
    return int(any(outcome.problem for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
