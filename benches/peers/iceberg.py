"""Writes to a table with PyIceberg, once for each line that comes; see the bench `iceberg`.

Arguments: the address of the SQL catalog and the table. A line is `replace DAY TURN`, the dynamic overwrite of one day, or
`upsert DAY DAYS ROWS TURN`, an upsert of the first rows of some days. Answers with the seconds that passed and those on
cores.
"""

import datetime
import sys
import time

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

address, name = sys.argv[1], sys.argv[2]
catalog = SqlCatalog("bench", uri=address)
SCHEMA = pa.schema(
    [
        pa.field("day", pa.date32(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.string()),
        pa.field("cents", pa.int64()),
        pa.field("weight", pa.float64()),
    ]
)


def rows(first, days, count, turn):
    numbers = [(day, i) for day in range(first, first + days) for i in range(count)]
    ids = [day * 10_000_000 + i for day, i in numbers]
    start = datetime.date(2026, 1, 1)
    return pa.table(
        {
            "day": pa.array([start + datetime.timedelta(day) for day, _ in numbers], pa.date32()),
            "id": pa.array(ids, pa.int64()),
            "customer": [f"customer {id % 7_919}" for id in ids],
            "cents": pa.array([id % 1_000 + turn for id in ids], pa.int64()),
            "weight": [(i % 10_007) / 8.0 for _, i in numbers],
        },
        schema=SCHEMA,
    )


for line in sys.stdin:
    what, *numbers = line.split()
    numbers = [int(number) for number in numbers]
    if what == "replace":
        day, turn = numbers
        table, data = catalog.load_table(name), rows(day, 1, 100_000, turn)
        start, cores = time.perf_counter(), time.process_time()
        table.dynamic_partition_overwrite(data)
    else:
        day, days, count, turn = numbers
        table, data = catalog.load_table(name), rows(day, days, count, turn)
        start, cores = time.perf_counter(), time.process_time()
        table.upsert(data, join_cols=["id"])
    print(time.perf_counter() - start, time.process_time() - cores, flush=True)
