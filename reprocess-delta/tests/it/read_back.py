"""Prints the rows of a Delta table as the Python `deltalake` and DuckDB read them: `reader|cells`, NULL as `NULL`."""
import sys

import duckdb
from deltalake import DeltaTable
from duckdb_extensions import import_extension

path = sys.argv[1]
import_extension("delta")


def show(reader, names, rows):
    for row in rows:
        cells = dict(zip(names, row))
        print(reader + "|" + "/".join("NULL" if cells[name] is None else str(cells[name]) for name in columns))


table = DeltaTable(path)
columns = [field.name for field in table.schema().fields]
rows = table.to_pyarrow_table().to_pylist()
show("deltalake", columns, [[row[name] for name in columns] for row in rows])
found = duckdb.sql("SELECT * FROM delta_scan('" + path.replace("'", "''") + "')")
show("duckdb", found.columns, found.fetchall())
