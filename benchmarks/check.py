"""The gate of CI: `ztrio bench check`, whose exit status says whether ztrio is right and its ratios hold."""

import sys

from ztrio_cli.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", "check", *sys.argv[1:]]))
