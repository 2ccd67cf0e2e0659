#!/usr/bin/env python3
"""Replaces one day of 100,000 rows with dbt and with SQLMesh, beside the figures of the bench `postgres`.

    DATABASE_URL=postgres://user:password@host:port/database python3 benches/peers/postgres.py

It needs Python 3.11 and installs both tools under target/peers. The table has 20 days (FACT_DAYS) of 100,000 rows, a primary
key and an index over customers. Of each tool two times are told, in seconds: what it says its SQL took, and what its process
took from start to end, as a user would wait for it. The first is of the last of three runs, so that nothing is built for it.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import time
import urllib.parse
import venv

ROOT = pathlib.Path(__file__).resolve().parents[2] / "target" / "peers"
DAYS = int(os.environ.get("FACT_DAYS", "20"))
TOOLS = {
    "dbt": ["dbt-core==1.10.23", "dbt-postgres==1.9.1", "psycopg2-binary"],
    "sqlmesh": ["sqlmesh[postgres]==0.236.4"],
}
ROWS = """
    SELECT date '2026-01-01' + d AS day, d::bigint * 10000000 + i AS id,
           (date '2026-01-01' + d)::timestamp AT TIME ZONE 'UTC' + (i * 0.8 % 86400) * interval '1 s' AS created_at,
           ((d::bigint * 10000000 + i) * 2654435761) % 1000003 AS customer, (i % 1000)::integer AS items,
           ((i % 90000) / 100.0)::numeric(12,2) AS amount, 'sku ' || lpad((i % 100003)::text, 8, '0') AS sku,
           'warehouse ' || i % 97 AS warehouse,
           CASE WHEN i % 2 = 0 THEN 'left at the door of number ' || lpad(i::text, 20, '0') END AS note
    FROM {days} AS n (d), generate_series(0, 99999) AS i"""
DAY = "2026-01-11"


def installed(tool):
    """The folder of the programs of a tool."""
    folder = ROOT / tool
    if not (folder / "bin" / tool).exists():
        venv.create(folder, with_pip=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", *TOOLS[tool]], check=True)
    return folder / "bin"


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def sql(python, address, text):
    code = "import sys, psycopg2; c = psycopg2.connect(sys.argv[1]); c.autocommit = True; c.cursor().execute(sys.stdin.read())"
    subprocess.run([python, "-c", code, address], input=text, text=True, check=True)


def run(command, folder, env):
    start = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=os.environ | env, text=True, capture_output=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    return time.monotonic() - start, done.stdout


def dbt(url):
    programs, folder = installed("dbt"), ROOT / "dbt_project"
    write(folder, {
        "dbt_project.yml": "name: peers\nversion: '1.0.0'\nconfig-version: 2\nprofile: peers\nmodel-paths: [models]\n",
        "profiles.yml": f"""\
            peers:
              target: it
              outputs:
                it: {{type: postgres, host: {url.hostname}, port: {url.port}, user: {url.username},
                     password: "{{{{ env_var('PEERS_PASSWORD') }}}}", dbname: {url.path[1:]}, schema: peers, threads: 1}}
            """,
        "models/facts_dbt.sql": """\
            {{ config(materialized='incremental', incremental_strategy='delete+insert', unique_key='day') }}
            {% if is_incremental() %} select * from peers.incoming {% else %} select * from peers.facts {% endif %}
            """,
    })
    env = {"PEERS_PASSWORD": url.password, "DBT_PROFILES_DIR": str(folder), "DBT_SEND_ANONYMOUS_USAGE_STATS": "false"}
    run([programs / "dbt", "run", "--quiet"], folder, env)
    sql(programs / "python", url.geturl(), """
        ALTER TABLE peers.facts_dbt ADD PRIMARY KEY (day, id); CREATE INDEX ON peers.facts_dbt (customer);
        ANALYZE peers.facts_dbt""")
    for _ in range(3):
        wall, _ = run([programs / "dbt", "run", "--quiet"], folder, env)
        results = json.loads((folder / "target" / "run_results.json").read_text())
    return results["results"][0]["execution_time"], wall


def sqlmesh(url):
    programs, folder = installed("sqlmesh"), ROOT / "sqlmesh_project"
    write(folder, {
        "config.yaml": f"""\
            gateways:
              it:
                connection: {{type: postgres, host: {url.hostname}, port: {url.port}, user: {url.username},
                             password: "{{{{ env_var('PEERS_PASSWORD') }}}}", database: {url.path[1:]}}}
            default_gateway: it
            model_defaults: {{dialect: postgres, start: '2026-01-01'}}
            disable_anonymized_analytics: true
            """,
        "models/facts_mesh.sql": """\
            MODEL (name peers.facts_mesh, kind INCREMENTAL_BY_TIME_RANGE (time_column day, batch_size 1000), cron '@daily');
            SELECT day, id, created_at, customer, items, amount, sku, warehouse, note FROM peers.facts
            WHERE day BETWEEN @start_date AND @end_date
            """,
    })
    env = {"PEERS_PASSWORD": url.password, "SQLMESH__DISABLE_ANONYMIZED_ANALYTICS": "true"}
    mesh = programs / "sqlmesh"
    run([mesh, "plan", "--auto-apply", "--no-prompts"], folder, env)
    sql(installed("dbt") / "python", url.geturl(), f"""
        DO $$ DECLARE t regclass; BEGIN
            SELECT c.oid::regclass INTO t FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = 'sqlmesh__peers' AND c.relkind = 'r' AND c.relname LIKE '%facts_mesh%' LIMIT 1;
            EXECUTE format('ALTER TABLE %s ADD PRIMARY KEY (day, id)', t);
            EXECUTE format('CREATE INDEX ON %s (customer)', t);
            EXECUTE format('ANALYZE %s', t);
        END $$""")
    restate = ["--restate-model", "peers.facts_mesh", f"--start={DAY}", f"--end={DAY}", "--auto-apply", "--no-prompts"]
    for _ in range(3):
        wall, told = run([mesh, "plan", *restate], folder, env)
    return float(re.findall(r"rows\)\]\s+([\d.]+)s", told)[-1]), wall


def main():
    url = urllib.parse.urlparse(os.environ["DATABASE_URL"])
    python = installed("dbt") / "python"
    sql(python, url.geturl(), f"""
        DROP SCHEMA IF EXISTS peers CASCADE; CREATE SCHEMA peers;
        CREATE TABLE peers.facts AS {ROWS.format(days=f"generate_series(0, {DAYS} - 1)")};
        CREATE TABLE peers.incoming AS {ROWS.format(days="(SELECT 10)")};
        CREATE INDEX ON peers.facts (day); ANALYZE peers.facts, peers.incoming""")
    for name, replace in [("dbt, delete+insert", dbt), ("SQLMesh, restate a day", sqlmesh)]:
        took, wall = replace(url)
        print(f"{name:<28} SQL {took:6.2f} s   process {wall:6.2f} s", flush=True)


main()
