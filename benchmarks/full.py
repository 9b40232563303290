"""Make the record that docs/benchmarks.md shows: every case beside every peer, kept as JSON and drawn.

    python benchmarks/full.py [OPTIONS OF ztrio bench]

Writes `benchmarks/records/<date>.json` and its plots, and the same for 64 calls cancelled at once. Takes about a
quarter of an hour (two cores), and says on stderr how far it is. `--rounds 10` takes four times as long and has better
tails.
"""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from ztrio_cli.main import main

RECORDS = Path(__file__).parent / "records"
# As long as there is patience for: some peers need a minute for what ztrio does in a tenth of a second.
PARTS = {
    "": ["all", "--rounds", "3", "--seconds", "1.5"],
    "-load-64": ["cancel", "--load", "64", "--rounds", "2"],
}


def run(options: list[str]) -> int:
    """Make every part; the exit status is that of the first part that failed, or 0."""
    RECORDS.mkdir(exist_ok=True)
    date = datetime.now(UTC).date().isoformat()
    status = 0
    began = time.monotonic()
    for suffix, words in PARTS.items():
        name = f"{date}{suffix}"
        kept = ["--json", str(RECORDS / f"{name}.json"), "--plots", str(RECORDS / name)]
        status = main(["bench", *words, "--against", "all", *kept, *options]) or status
        sys.stderr.write(f"{name}: done after {(time.monotonic() - began) / 60:.0f} min\n")
    return status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
