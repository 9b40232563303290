"""Serves `mcp_box.py` over stdio: the process that tests start. Arguments: workspace."""

import sys
from pathlib import Path

from ztrio_mcp import run_stdio

if __name__ == "__main__":
    box = Path(__file__).with_name("mcp_box.py")
    sys.exit(run_stdio(str(box), workspace=sys.argv[1]))
