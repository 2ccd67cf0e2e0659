"""Replaces one day of a table with the Python `deltalake`, once for each line that comes; see the bench `delta`.

Answers with the seconds that passed and those on cores.
"""

import datetime
import sys
import time

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

path, day = sys.argv[1], datetime.date.fromisoformat(sys.argv[2])
number = (day - datetime.date(2026, 1, 1)).days
ids = [number * 10_000_000 + i for i in range(100_000)]
customers = [f"customer {id % 7_919}" for id in ids]
weights = [(i % 10_007) / 8.0 for i in range(100_000)]

for line in sys.stdin:
    rows = pa.table(
        {
            "day": pa.array([day] * len(ids), pa.date32()),
            "id": pa.array(ids, pa.int64()),
            "customer": customers,
            "cents": pa.array([id % 1_000 + int(line) for id in ids], pa.int64()),
            "weight": weights,
        },
        schema=pa.schema(
            [
                pa.field("day", pa.date32(), nullable=False),
                pa.field("id", pa.int64(), nullable=False),
                pa.field("customer", pa.string()),
                pa.field("cents", pa.int64()),
                pa.field("weight", pa.float64()),
            ]
        ),
    )
    table = DeltaTable(path)
    start, cores = time.perf_counter(), time.process_time()
    write_deltalake(table, rows, mode="overwrite", predicate=f"day = '{day}'")
    print(time.perf_counter() - start, time.process_time() - cores, flush=True)
