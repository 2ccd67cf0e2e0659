"""PyIceberg on a SQL catalog in a SQLite file: `catalogs.py FILE WAREHOUSE create|append|show|list`."""

import datetime
import sys

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

file, warehouse, command = sys.argv[1:]
catalog = SqlCatalog("test", uri=f"sqlite:///{file}", warehouse=warehouse)
schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("day", pa.date32())])

if command == "create":
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", schema=schema)
elif command == "append":
    rows = pa.table([[1, 2], [datetime.date(2026, 10, 5), None]], schema=schema)
    catalog.load_table("shop.orders").append(rows)
elif command == "show":
    table = catalog.load_table("shop.orders")
    names = ",".join(field.name for field in table.schema().fields)
    tags = sorted(name for name in table.metadata.refs if name != "main")
    print(table.metadata_location, names, len(table.metadata.snapshots), *tags)
elif command == "list":
    namespaces = [".".join(namespace) for namespace in catalog.list_namespaces()]
    tables = [".".join(name) for name in catalog.list_tables("shop")]
    print(*namespaces, *tables)
