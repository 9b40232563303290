"""What the demo prints: a short table for people, or one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
from rich.table import Table
from rich.text import Text

from ztrio_cli.console import console, write_json, write_line
from ztrio_cli.demo.facts import Facts, Promise, sequences
from ztrio_cli.demo.promises import check

__all__ = ["Report", "show"]


@attrs.frozen
class Report:
    """One scene with its promises."""

    facts: Facts
    promises: tuple[Promise, ...]

    @classmethod
    def of(cls, facts: Facts) -> Report:
        """Check the promises of a scene."""
        return cls(facts, check(facts))

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return all(promise.kept for promise in self.promises)

    @property
    def proofs(self) -> list[dict[str, Any]]:
        """The proofs of death in the scene's audit, one per worker."""
        found = {event["proof"]["pid"]: event["proof"] for event in self.facts.events if event.get("proof")}
        return list(found.values())

    def as_dict(self) -> dict[str, Any]:
        """The scene as JSON."""
        return {
            "scene": self.facts.scene,
            "kept": self.kept,
            "seconds": round(self.facts.seconds, 4),
            "audit": list(sequences(self.facts.events).values()),
            "workers": [proof["pid"] for proof in self.proofs],
            "proofs": self.proofs,
            "promises": [attrs.asdict(promise) for promise in self.promises],
        }


def show(reports: Sequence[Report], workspace: Path | None, *, as_json: bool) -> bool:
    """Print the reports; whether every promise was kept.

    Args:
        reports: The scenes.
        workspace: The folder that was kept, or None.
        as_json: Print JSON.
    """
    kept = all(report.kept for report in reports)
    if as_json:
        scenes = [report.as_dict() for report in reports]
        write_json({"kept": kept, "workspace": None if workspace is None else str(workspace), "scenes": scenes})
        return kept
    _show_tables(reports)
    for report in reports:
        for promise in report.promises:
            if not promise.kept:
                write_line(f"BROKEN  {report.facts.scene}: {promise.text}. Seen: {promise.evidence}.")
    count = sum(len(report.promises) for report in reports)
    if kept:
        write_line(f"All {count} promises were kept, as seen from outside the server.")
    else:
        write_line(f"{sum(not promise.kept for report in reports for promise in report.promises)} of {count} broken.")
    if workspace is not None:
        write_line(f"Look around: {workspace} (the site, and the audit: ztrio audit --workspace {workspace})")
    return kept


def _show_tables(reports: Sequence[Report]) -> None:
    # Two narrow tables instead of a wide one: both fit into 80 columns.
    table = Table("scene", "took", "worker", "proof of death", "promises", box=None, pad_edge=False)
    said = Table("scene", "what the audit says", box=None, pad_edge=False)
    for report in reports:
        total, good = len(report.promises), sum(promise.kept for promise in report.promises)
        table.add_row(
            report.facts.scene,
            f"{report.facts.seconds:.2f} s",
            "\n".join(str(proof["pid"]) for proof in report.proofs) or "-",
            "\n".join(map(_proof, report.proofs)) or "-",
            Text(f"{good}/{total} kept", style="green" if good == total else "bold red"),
        )
        said.add_row(report.facts.scene, _audit(report.facts))
    console().print(table)
    write_line()
    console().print(said)
    write_line()


def _audit(facts: Facts) -> str:
    return "\n".join(" → ".join(names) for names in sequences(facts.events).values()) or "-"


def _proof(proof: dict[str, Any]) -> str:
    took = (proof["proven_at"] - proof["killed_at"]) * 1000
    return f"{proof['rung']}, {proof['containment']}, {took:.1f} ms"
