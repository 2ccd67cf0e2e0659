"""Runs the DAG in a real Airflow with a real dbt over a real PostgreSQL, and checks what became of it.

`scripts/test airflow` installs what is needed and calls this with the Python of Airflow:

    python check.py HOST DBT FOLDER

HOST is the host program, DBT the program dbt, and FOLDER a folder for all files, which is made. REPROCESS_TEST_POSTGRES is
the address of a server on which databases may be made.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2

HERE = Path(__file__).resolve().parent
HOST, DBT, FOLDER = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
SERVER = urlsplit(os.environ["REPROCESS_TEST_POSTGRES"])
BIN = Path(sys.executable).parent
PATIENCE_SECONDS = 600
SLOTS = 2
# Names that no other run of this on the same server has.
AIRFLOW, SHOP = (f"{name}_{secrets.token_hex(4)}" for name in ("airflow", "shop"))

FIRST, LAST = "2025-10-25", "2025-10-27"
# From shop.sql by hand: revenue, refunds, and revenue without a tax of 20 %.
DAYS = [
    ("2025-10-25", "120.50", "50.00", "100.42"),
    ("2025-10-26", "70.00", "0.00", "58.33"),
    ("2025-10-27", "42.30", "5.00", "35.25"),
]
# An order that came late, and one more.
LATE = "INSERT INTO shop.orders VALUES (8, '2025-10-27', 6.00)"
WITH_LATE = [DAYS[0], DAYS[1], ("2025-10-27", "48.30", "5.00", "40.25")]
LATER = "INSERT INTO shop.orders VALUES (9, '2025-10-26', 50.00)"
WITH_BOTH = [DAYS[0], ("2025-10-26", "120.00", "0.00", "100.00"), WITH_LATE[2]]


def address(database: str) -> str:
    return SERVER._replace(path=f"/{database}").geturl()


def ask(database: str, sql: str, *arguments):
    connection = psycopg2.connect(address(database))
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(sql, arguments or None)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


def same(what: str, found, expected) -> None:
    assert found == expected, f"{what}\n  found:    {found}\n  expected: {expected}"
    print(f"  ok: {what}", flush=True)


def until(what: str, holds) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, f"not within {PATIENCE_SECONDS} s: {what}"
        time.sleep(0.5)
    print(f"  {what}", flush=True)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def environment() -> dict[str, str]:
    api, logs = free_port(), free_port()
    airflow = {
        "CORE__DAGS_FOLDER": HERE / "dags",
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": 4,
        "CORE__LOAD_EXAMPLES": False,
        "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{api}/execution/",
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": True,
        "DATABASE__SQL_ALCHEMY_CONN": address(AIRFLOW).replace("postgres:", "postgresql+psycopg2:"),
        "API__HOST": "127.0.0.1",
        "API__PORT": api,
        "API__WORKERS": 1,
        "API__SECRET_KEY": secrets.token_hex(32),
        "API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "LOGGING__WORKER_LOG_SERVER_PORT": logs,
        "USAGE_DATA_COLLECTION__ENABLED": False,
    }
    return os.environ | {f"AIRFLOW__{name}": str(value) for name, value in airflow.items()} | {
        "AIRFLOW_HOME": str(FOLDER / "airflow"),
        "PATH": f"{BIN}:{DBT.parent}:{os.environ['PATH']}",
        # Nothing is written into the source tree.
        "PYTHONDONTWRITEBYTECODE": "1",
        "DBT_PROJECT_DIR": str(HERE / "dbt"),
        "DBT_PROFILES_DIR": str(HERE / "dbt"),
        "DBT_TARGET_PATH": str(FOLDER / "target"),
        "DBT_LOG_PATH": str(FOLDER / "dbt-log"),
        "REPROCESS_HOST": HOST,
        "DATABASE_URL": address(SHOP),
        "PGHOST": SERVER.hostname,
        "PGPORT": str(SERVER.port),
        "PGUSER": SERVER.username,
        "PGPASSWORD": SERVER.password,
        "PGDATABASE": SHOP,
    }


def run(*command) -> str:
    print("$", "HOST" if command[0] == HOST else command[0], *command[1:], flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


@contextlib.contextmanager
def services(*names: str):
    """Airflow's processes, each with its children in a group of its own, ended with the block."""
    started = []
    try:
        for name in names:
            with open(FOLDER / f"{name}.log", "w") as log:
                command = ["airflow", name]
                started.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
        yield started
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in started:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)


def backfill(started, number: int, *options: str) -> None:
    """A backfill of Airflow, up to its end, and that of all runs beside it."""
    days = ["--from-date", FIRST, "--to-date", LAST]
    run("airflow", "backfill", "create", "--dag-id", "shop", *days, "--max-active-runs", "2", *options)

    def ended() -> bool:
        gone = [p.args for p in started if p.poll() is not None]
        assert not gone, f"ended before its time: {gone}"
        states = [state for (state,) in ask(AIRFLOW, "SELECT state FROM dag_run WHERE dag_id = 'shop'")]
        assert "failed" not in states, f"a run of the DAG failed: {states}"
        done = ask(AIRFLOW, "SELECT count(*) FROM backfill WHERE completed_at IS NOT NULL")
        return done == [(number,)] and set(states) == {"success"}

    until("Airflow's backfill is done, and every run of the DAG a success", ended)


def outputs() -> list:
    """The numbers of all three tables."""
    return ask(
        SHOP,
        """SELECT day::text, v.amount::text, f.amount::text, net::text
           FROM shop.daily_revenue AS v JOIN shop.daily_refunds AS f USING (day)
           LEFT JOIN reports.net_revenue AS n USING (day) WHERE day BETWEEN %s AND %s ORDER BY day""",
        FIRST,
        LAST,
    )


def ledger() -> list:
    """Job, partition and run of each row. Beside these days there is what the schedule ran."""
    days = "status = 'committed' AND partition BETWEEN %s AND %s"
    rows = f"SELECT job, partition, run FROM reprocess.run WHERE {days} ORDER BY 1, 2, 3"
    return ask(SHOP, rows, f"day={FIRST}", f"day={LAST}")


def built() -> dict[str, str]:
    """Which run of dbt built a day."""
    days = "SELECT day::text, built_by FROM reports.net_revenue WHERE day BETWEEN %s AND %s"
    return dict(ask(SHOP, days, FIRST, LAST))


def written() -> list:
    """What tells whether anything was written: a row that is written again has another `xmin`."""
    tables = ("shop.daily_revenue", "shop.daily_refunds", "reports.net_revenue")
    rows = "SELECT xmin::text, t::text FROM {} AS t WHERE day BETWEEN %s AND %s ORDER BY 2"
    records = "SELECT position, record::text FROM reprocess.run WHERE run LIKE 'backfill__%' ORDER BY 1"
    sent = "SELECT key, state, attempts FROM reprocess.delivery WHERE run LIKE 'backfill__%' ORDER BY 1"
    return [*(ask(SHOP, rows.format(table), FIRST, LAST) for table in tables), ask(SHOP, records), ask(SHOP, sent)]


def instances() -> list:
    """The mapped instances of the task `run`, by what they ran."""
    return ask(
        AIRFLOW,
        """SELECT rendered_map_index, pool, state, start_date FROM task_instance
           WHERE dag_id = 'shop' AND task_id = 'run' AND run_id LIKE 'backfill__%' ORDER BY 1""",
    )


def most_at_a_time() -> int:
    """How many instances of the pool ran at the same moment."""
    return ask(
        AIRFLOW,
        """SELECT max((SELECT count(*) FROM task_instance AS b WHERE b.pool = a.pool
                       AND b.start_date <= a.start_date AND b.end_date > a.start_date))
           FROM task_instance AS a WHERE a.pool = 'reprocess'""",
    )[0][0]


def check_exit_codes() -> None:
    sys.path.insert(0, str(HERE / "dags"))
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    import shop

    def outcome(code: int) -> str:
        try:
            shop.check_exit(code)
        except AirflowFailException:
            return "fails"
        except AirflowException:
            return "again"
        return "done"

    found = {code: outcome(code) for code in (0, 1, 2, 3, 4, 5, 75, -9)}
    expected = {0: "done", 1: "fails", 2: "fails", 3: "fails", 4: "fails", 5: "again", 75: "again", -9: "again"}
    same("a retry where it helps, by the exit code", found, expected)


def check_first_backfill() -> None:
    same("revenue, refunds and dbt's model, as counted by hand", outputs(), DAYS)
    runs = ask(
        AIRFLOW,
        """SELECT run_id, data_interval_start::date::text FROM dag_run
           WHERE dag_id = 'shop' AND run_type = 'backfill'""",
    )
    expected = [(job, f"day={day}", run) for job in ("daily_refunds", "daily_revenue") for run, day in runs]
    same("each interval of each job has one row in the ledger, with Airflow's run id", ledger(), sorted(expected))
    jobs_and_days = [
        f"{job} {day}T00:00:00+00:00/2025-10-{int(day[-2:]) + 1}T00:00:00+00:00"
        for job in ("daily_refunds", "daily_revenue")
        for day, *_ in DAYS
    ]
    found = [(name, pool, state) for name, pool, state, _ in instances()]
    same("a mapped task for each", found, [(name, "reprocess", "success") for name in jobs_and_days])
    same(f"at most {SLOTS} at a time, by the pool", most_at_a_time() <= SLOTS, True)
    told = ask(
        SHOP,
        """SELECT state, attempts, note LIKE '%PASS=3%ERROR=0%' FROM reprocess.delivery
           WHERE channel = 'events' AND payload->>'table' = 'shop.daily_revenue'
               AND run LIKE 'backfill__%' ORDER BY key""",
    )
    same("dbt build was sent each day once, and passed", told, [("sent", 1, True)] * 3)
    same("each day was built by a run of dbt of its own", len(set(built().values())), 3)
    last = json.loads((FOLDER / "target" / "run_results.json").read_text())
    same("dbt's own record names the build", last["args"]["select"], ["net_revenue+"])


def check_again(started) -> None:
    before, first = written(), instances()
    backfill(started, 2, "--reprocess-behavior", "completed")
    ran = [(now[0], now[3] > was[3]) for was, now in zip(first, instances(), strict=True)]
    same("every mapped task ran again", ran, [(name, True) for name, *_ in first])
    same("and wrote nothing: not to the tables, not to the ledger, nor did dbt", written(), before)


def check_one_day(correct, numbers: list, day: str, rows_of_day: list) -> None:
    before, rows = built(), ledger()
    correct()
    same("the late order is in the revenue, and in dbt's model", outputs(), numbers)
    changed = [day for day, by in built().items() if by != before[day]]
    same("dbt built its day and no other", changed, [day])
    new = [row for row in ledger() if row not in rows]
    same("the ledger has one more row of each job that ran, of its day", new, rows_of_day)


def check_corrections(started) -> None:
    def by_airflow():
        ask(SHOP, LATE)
        backfill(started, 3, "--reprocess-behavior", "completed")

    # Airflow names its runs by when they are due; this one was cleared twice. Both jobs read the orders.
    late = ("day=2025-10-27", "backfill__2025-10-28T00:00:00+00:00~2")
    check_one_day(by_airflow, WITH_LATE, "2025-10-27", [("daily_refunds", *late), ("daily_revenue", *late)])

    def by_backfill():
        ask(SHOP, LATER)
        why = ["--id", "late-order", "--reason", "an order came late"]
        run(HOST, "backfill", "daily_revenue@v1", "--from", FIRST, "--to", LAST, *why, "--mode", "direct", "--yes")

    check_one_day(by_backfill, WITH_BOTH, "2025-10-26", [("daily_revenue", "day=2025-10-26", "late-order.1")])


def main() -> None:
    FOLDER.mkdir()
    os.environ.update(environment())
    for database in (AIRFLOW, SHOP):
        ask("postgres", f"CREATE DATABASE {database}")
    ask(SHOP, (HERE / "shop.sql").read_text())
    run("airflow", "db", "migrate")
    run("airflow", "pools", "set", "reprocess", str(SLOTS), "processes of the host")
    check_exit_codes()
    with services("api-server", "scheduler", "dag-processor") as started:
        until("the DAG is read", lambda: ask(AIRFLOW, "SELECT 1 FROM serialized_dag WHERE dag_id = 'shop'"))
        run("airflow", "dags", "unpause", "shop")
        backfill(started, 1)
        check_first_backfill()
        check_again(started)
        check_corrections(started)
    for database in (AIRFLOW, SHOP):
        ask("postgres", f"DROP DATABASE {database} WITH (FORCE)")
    print("example result: ok. airflow, with dbt", flush=True)


def show_logs() -> None:
    """The ends of what was logged, for who has to find out."""
    logs = [*FOLDER.glob("*.log"), *FOLDER.glob("airflow/logs/**/*.log"), *FOLDER.glob("dbt-log/*.log")]
    for log in sorted(logs, key=lambda path: path.stat().st_mtime):
        print(f"\n== {log.relative_to(FOLDER)}", *log.read_text(errors="replace").splitlines()[-30:], sep="\n")


try:
    main()
except BaseException:
    show_logs()
    raise
