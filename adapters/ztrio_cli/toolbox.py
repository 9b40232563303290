"""Loading a user's toolbox where stdout is for results: what its modules print on the way goes to stderr."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

from ztrio.loading import load_toolbox
from ztrio.tools import Toolbox

__all__ = ["load"]


def load(source: str) -> Toolbox:
    """Load `TOOLS.py[:NAME]`.

    Raises:
        ztrio.ToolboxError: it cannot be loaded, naming file, line and reason.
    """
    with redirect_stdout(sys.stderr):
        return load_toolbox(source)
