"""The recipe of docs/spark.md for a lake format, twice: ``python -m tests.spark.lakes Delta``.

Run with the pyspark that the recipe names (scripts/spark-versions.sh). The format's jar comes from
Maven Central.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import qindex

_PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def main(title: str, root: Path) -> None:
    """Run the recipe, publish more, run it again, and count what the lake has."""
    section = re.split(r"^##", _PAGE.read_text().partition(f"### {title}\n")[2], flags=re.M)[0]
    (recipe,) = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    expected = set()
    for run in range(2):
        for store in ("a", "b"):
            with qindex.open(root / "fleet" / store, background=False) as engine:
                bodies = [b"%s %d %d" % (store.encode(), run, number) for number in range(500)]
                engine.queue("q").publish_many(bodies)
                expected.update(bodies)
        names: dict[str, Any] = {}
        exec(recipe.replace("/srv", str(root)), names)
        spark = names["spark"]
        if title == "Delta":
            rows = spark.read.format("delta").load(str(root / "lake" / "messages"))
        else:
            rows = spark.table("lake.db.messages")
        found = [bytes(row["body"]) for row in rows.collect()]
        assert len(found) == len(expected)
        assert set(found) == expected
    print(f"{title}: {len(expected)} messages, each once, in two runs")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(sys.argv[1], Path(place))
