"""Runs statements of Spark, whose Iceberg is the library in Java, over the tables of a REST catalog that is called `lake`.

Argument: the address of the catalog. Each line of the input is a request in JSON with one statement, each line of the output
its rows. Cells are joined with `/`, NULL is `NULL`.
"""

import json
import pathlib
import sys

import snowpark_connect_deps_iceberg
from pyspark.sql import SparkSession

[folder] = snowpark_connect_deps_iceberg.__path__
[jar] = pathlib.Path(folder).glob("jars/iceberg-spark-runtime-3.5_2.12-*.jar")
settings = {
    "spark.jars": str(jar),
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "rest",
    "spark.sql.catalog.lake.uri": sys.argv[1],
    # What others did is seen at once.
    "spark.sql.catalog.lake.cache-enabled": "false",
}
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")


def cell(value):
    return "NULL" if value is None else str(value)


for line in sys.stdin:
    rows = spark.sql(json.loads(line)["sql"]).collect()
    print(json.dumps(sorted("/".join(map(cell, row)) for row in rows)), flush=True)
