"""A sink of your own: the results of a run become rows of an SQLite table, each exactly once.

    python examples/sqlite_sink.py

A sink has three verbs. `write` takes a result, `commit` makes all results so far durable and says where the sink is, and `rewind` cuts
the sink back to such a position. `is_in` says which file is no place for a journal, and `is_empty` whether a journal may be begun. Here a position is the number of rows. Kill this program at any moment and start it again: it goes on.
"""

import argparse
import math
import sqlite3
from pathlib import Path
from typing import Any

import exoskel as ex


class SqliteTable:
    """A table of items and results.

    Parameters
    ----------
    path : path
        The database.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database = sqlite3.connect(path)
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS result (item INTEGER PRIMARY KEY, value)"
        )

    def sink_text(self) -> str:
        """Say which database it is: a journal goes on only with the same one."""
        return f"SQLite table in {self._path.absolute()}"

    def is_in(self, path: str) -> bool:
        """Say whether a path leads to the database."""
        return Path(path).resolve() == self._path.resolve()

    def is_empty(self) -> bool:
        """Say whether there is no row."""
        return self._database.execute("SELECT 1 FROM result LIMIT 1").fetchone() is None

    def rewind(self, position: bytes | None) -> bytes:
        """Remove all rows behind a position."""
        self._database.rollback()
        if position is not None:
            self._database.execute(
                "DELETE FROM result WHERE item NOT IN (SELECT item FROM result ORDER BY item LIMIT ?)",
                (int(position),),
            )
        return self.commit()

    def write(self, index: int, result: Any) -> None:
        """Add a row."""
        self._database.execute("INSERT INTO result VALUES (?, ?)", (index, result))

    def commit(self) -> bytes:
        """Make all rows durable."""
        self._database.commit()
        (rows,) = self._database.execute("SELECT count(*) FROM result").fetchone()
        return str(rows).encode()

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def root(item: int) -> float:
    """Return the square root."""
    return math.sqrt(item)


def main() -> None:
    """Run over some numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("examples/output"))
    parser.add_argument("--items", type=int, default=2000)
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    sink = SqliteTable(arguments.folder / "roots.sqlite")
    journal = arguments.folder / "roots.journal"
    print(ex.run(root, range(arguments.items), sink, ex.ParDegree(2), journal=journal))


if __name__ == "__main__":
    main()
