"""Figures as text or as JSON, in the form of replay-bench."""
import json
import statistics
from dataclasses import dataclass, field
from typing import Optional


@dataclass
class Row:
    """One figure: its values over the rounds, and its goal."""

    what: str
    unit: str  # "ratio": to the C library in the same round
    values: list[float] = field(default_factory=list)
    goal: Optional[float] = None
    at_most: bool = False
    missing: str = ""  # why there are no values

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def met(self) -> Optional[bool]:
        """Whether the goal is reached. None: there is no goal, or no figure."""
        if self.goal is None or not self.values:
            return None
        return self.median <= self.goal if self.at_most else self.median >= self.goal

    def text(self) -> str:
        if not self.values:
            return f"  {self.what:44} not measured: {self.missing}"
        line = f"  {self.what:44} {_number(self.median):>10} {self.unit:8} ({_number(min(self.values))} to {_number(max(self.values))})"
        if self.met is None:
            return line
        return f"{line:90} goal {'<=' if self.at_most else '>='} {self.goal:g}: {'met' if self.met else 'missed'}"

    def data(self) -> dict:
        out: dict = {"what": self.what, "unit": self.unit}
        if not self.values:
            return {**out, "missing": self.missing}
        out["ratio" if self.unit == "ratio" else "value"] = self.median
        out |= {"min": min(self.values), "max": max(self.values)}
        if self.met is not None:
            out |= {"goal": self.goal, "at_most": self.at_most, "met": self.met}
        return out


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def show(rows: list[Row], rounds: int, quick: bool, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"command": "python", "repeats": rounds, "quick": quick, "rows": [row.data() for row in rows]}, indent=1))
        return
    print(f"python; medians of {rounds} rounds, the cases in turn; ratios are those of the same round")
    for row in rows:
        print(row.text())
