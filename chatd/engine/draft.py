"""A step in the making. Pure."""

from chatd.engine.plan import StepRow
from chatd.ids import Rid


class Draft:
    """Rows by rid, and the tokens that may still be added."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.rows: dict[Rid, StepRow] = {}

    def add(self, row: StepRow) -> None:
        self.rows[row.rid] = row
        self.budget -= row.extend_len

    def drop(self, rid: Rid) -> None:
        row = self.rows.pop(rid, None)
        if row is not None:
            self.budget += row.extend_len
