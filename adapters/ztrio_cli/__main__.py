"""`python -m ztrio_cli`: the `ztrio` command where no script is installed, and how the demo starts its server."""

from ztrio_cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
