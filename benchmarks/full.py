"""Make the record that docs/benchmarks.md shows: every case beside every peer, kept as JSON and drawn.

    python benchmarks/full.py [OPTIONS OF ztrio bench]

Writes `benchmarks/records/<date>.json` and its plots, and the same for 64 calls cancelled at once.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path

from ztrio_cli.main import main

RECORDS = Path(__file__).parent / "records"
PARTS = {"": ["all"], "-load-64": ["cancel", "--load", "64"]}


def run(options: list[str]) -> int:
    """Make every part; the exit status is that of the first part that failed, or 0."""
    RECORDS.mkdir(exist_ok=True)
    date = datetime.now(UTC).date().isoformat()
    status = 0
    for suffix, words in PARTS.items():
        name = f"{date}{suffix}"
        kept = ["--json", str(RECORDS / f"{name}.json"), "--plots", str(RECORDS / name)]
        status = main(["bench", *words, "--against", "all", *kept, *options]) or status
    return status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
