"""The driver process: `start.py NAME`. Reads requests from stdin, one JSON object a line, and answers on stdout.

Run by its path under a peer's interpreter, where nothing of ztrio is installed: then it makes `ztrio_bench` importable
from where this file is, and nothing else from there, so that no library of ztrio's environment gets in.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO

__all__ = ["answers", "main", "serve"]


def _make_importable() -> None:
    root = Path(__file__).resolve().parent.parent
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != root / "drivers"]
    if importlib.util.find_spec("ztrio_bench") is not None:
        return
    spec = importlib.util.spec_from_file_location(
        "ztrio_bench", root / "__init__.py", submodule_search_locations=[str(root)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ztrio_bench"] = module
    spec.loader.exec_module(module)


def _answer(driver: Any, request: dict[str, Any]) -> dict[str, Any]:
    from ztrio_bench.drivers.kit import Unsupported  # noqa: PLC0415 - importable only now

    try:
        if request["op"] == "hello":
            return {"status": "ok", "facts": driver.hello(request)}
        return {"status": "ok", **driver.run(request)}
    except Unsupported as reason:
        return {"status": "unsupported", "reason": str(reason)}
    except Exception as error:  # noqa: BLE001 - a peer may fail in any way; the run goes on and shows it
        traceback.print_exc()
        while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:  # of a task group
            error = error.exceptions[0]
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}"}


def main(name: str) -> None:
    """Serve requests with a driver until stdin ends.

    Args:
        name: Module in `ztrio_bench.drivers`.
    """
    with answers() as out:
        serve(importlib.import_module(f"ztrio_bench.drivers.{name}"), out)


def answers() -> TextIO:
    """The stream for answers: stdout, which from now on is stderr for everybody else."""
    # What a subject or its tools print must not be taken for an answer.
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return stream


def serve(driver: Any, out: TextIO) -> None:
    """Answer requests on stdin until it ends.

    Args:
        driver: Has `hello` and `run`.
        out: Where to.
    """
    for line in sys.stdin:
        out.write(json.dumps(_answer(driver, json.loads(line))) + "\n")
        out.flush()


if __name__ == "__main__":
    _make_importable()
    main(sys.argv[1])
