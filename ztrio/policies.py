"""What a tool says about the paths it is given: `Output` and `Input`, used as `Annotated[Path, Output()]`."""

from __future__ import annotations

from typing import Literal

import attrs

__all__ = ["Input", "Output"]


def _default_existing(output: Output) -> Literal["replace", "refuse"]:
    # Replacing a directory drops what else was in it, so the tool's author has to say it.
    return "replace" if output.kind == "file" else "refuse"


@attrs.frozen
class Output:
    """The parameter names a path that the tool makes. The tool gets a staging path; success publishes it.

    The staging path does not exist when the tool starts (except with `copy_in`), its parent does.

    Args:
        kind: `file` or `dir`.
        existing: What to do when the target exists: `replace` it, `refuse` the call (`OUTPUT_EXISTS`), or `copy_in`
            its content first and replace it. Default: `replace` for files, `refuse` for directories.
        required: Whether a tool that does not make it has failed (`OUTPUT_MISSING`).
        on_conflict: When somebody else changed the target while the tool ran: `fail` keeps theirs
            (`OUTPUT_CONFLICT`), `overwrite` replaces it.
    """

    kind: Literal["file", "dir"] = attrs.field(default="file", validator=attrs.validators.in_(("file", "dir")))
    existing: Literal["replace", "refuse", "copy_in"] = attrs.field(
        default=attrs.Factory(_default_existing, takes_self=True),
        validator=attrs.validators.in_(("replace", "refuse", "copy_in")),
    )
    required: bool = True
    on_conflict: Literal["fail", "overwrite"] = attrs.field(
        default="fail", validator=attrs.validators.in_(("fail", "overwrite"))
    )


@attrs.frozen
class Input:
    """The parameter names a path inside the workspace that must exist. The tool gets it absolute.

    Args:
        kind: `file`, `dir` or `any`.
    """

    kind: Literal["file", "dir", "any"] = attrs.field(
        default="any", validator=attrs.validators.in_(("file", "dir", "any"))
    )
