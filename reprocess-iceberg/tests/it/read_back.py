"""Reads and changes a table of a SQL catalog with PyIceberg, and reads it with DuckDB, which shares no code with it.

Arguments: the file of the catalog, the table, and the settings of its store as JSON. Each line of the input is a request in JSON, each line of the output its
answer. Cells are joined with `/`, NULL is `NULL`.
"""

import json
import sys

import duckdb
import pyarrow as pa
from duckdb_extensions import import_extension
from pyiceberg.catalog.sql import SqlCatalog

file, name, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
catalog = SqlCatalog("test", uri=f"sqlite:///{file}", **settings)
import_extension("avro")
import_extension("iceberg")
if settings:
    import_extension("httpfs")
    duckdb.sql(
        f"""CREATE SECRET (TYPE s3, URL_STYLE 'path', USE_SSL false, REGION '{settings["s3.region"]}',
            ENDPOINT '{settings["s3.endpoint"].removeprefix("http://")}',
            KEY_ID '{settings["s3.access-key-id"]}', SECRET '{settings["s3.secret-access-key"]}')"""
    )


def lines(columns, rows):
    cell = lambda value: "NULL" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return sorted("/".join(cell(row[column]) for column in columns) for row in rows)


def read(ref):
    table = catalog.load_table(name)
    scan = table.scan() if ref is None else table.scan().use_ref(ref)
    found = scan.to_arrow()
    quoted = table.metadata_location.removeprefix("file://").replace("'", "''")
    if ref is None:
        source = f"iceberg_scan('{quoted}')"
    else:
        source = f"iceberg_scan('{quoted}', snapshot_from_id => {table.metadata.refs[ref].snapshot_id})"
    duck = duckdb.sql(f"SELECT * FROM {source}").to_arrow_table()
    return {
        "pyiceberg": lines(found.column_names, found.to_pylist()),
        "duckdb": lines(found.column_names, duck.to_pylist()),
    }


def rows_of(table, given):
    columns = table.schema().as_arrow()
    return pa.Table.from_pylist(
        [dict(zip(columns.names, row)) for row in given],
        schema=columns,
    )


def dated(given):
    import datetime

    return [
        [datetime.date.fromisoformat(row[0]) if row[0] is not None else None, *row[1:]] for row in given
    ]


for line in sys.stdin:
    ask = json.loads(line)
    table = catalog.load_table(name)
    what = ask["do"]
    answer = {}
    if what == "read":
        answer = read(ask.get("ref"))
    elif what == "append":
        table.append(rows_of(table, dated(ask["rows"])))
    elif what == "overwrite":
        table.dynamic_partition_overwrite(rows_of(table, dated(ask["rows"])))
    elif what == "delete":
        table.delete(ask["where"])
    elif what == "add column":
        with table.update_schema() as update:
            from pyiceberg.types import LongType

            update.add_column(ask["column"], LongType())
    elif what == "rename column":
        with table.update_schema() as update:
            update.rename_column(ask["column"], ask["to"])
    elif what == "drop column":
        with table.update_schema() as update:
            update.delete_column(ask["column"])
    elif what == "widen column":
        with table.update_schema() as update:
            from pyiceberg.types import LongType

            update.update_column(ask["column"], LongType())
    elif what == "drop partition field":
        with table.update_spec() as update:
            update.remove_field(ask["field"])
    elif what == "add partition field":
        from pyiceberg.transforms import BucketTransform

        with table.update_spec() as update:
            update.add_field(ask["column"], BucketTransform(4), ask["field"])
    elif what == "inspect":
        # What goes through every manifest and every entry of it.
        answer = {
            "files": len(table.inspect.files()),
            "entries": len(table.inspect.entries()),
            "snapshots": len(table.inspect.snapshots()),
            "rows": int(table.current_snapshot().summary["total-records"]),
        }
    else:
        raise ValueError(what)
    print(json.dumps(answer), flush=True)
