"""Revenue and refunds of each day: Airflow says when, the host program does the work.

The task `run` is mapped over jobs and days, so that each interval of each job is an instance of its own: it has its own
log and its own retries, and the pool counts it by itself. A data interval of several days, for example of a weekly
schedule, is several instances.
"""

import json
import os
import subprocess
from datetime import datetime, timedelta, timezone
from functools import cached_property

from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk import BaseOperator, CronDataIntervalTimetable, dag, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException

HOST = os.environ.get("REPROCESS_HOST", "reprocess-host")
JOBS = ["daily_revenue", "daily_refunds"]
# How many processes of the host run at a time, over all runs of the DAG, backfills included.
POOL = "reprocess"

# Exit codes of the host that another try can get past: what it read has moved, or what it needs is not there now.
RETRIED = {5, 75}


def check_exit(code: int) -> None:
    """Fails as the exit code says. A process that was killed, with a negative code, may be run again: under the same run
    id what it committed is recognised."""
    if code in RETRIED or code < 0:
        raise AirflowException(f"the host ended with {code}: to be tried again")
    if code != 0:
        raise AirflowFailException(f"the host ended with {code}: a person has to look, another try would not help")


def name_of(dag_run) -> str:
    """What a run of the DAG is called in the ledger. A retry is the same run, which is never done twice. A run that was
    cleared, also by a backfill that reprocesses, is another one: it does what has changed since, and skips the rest."""
    return f"{dag_run.run_id}~{dag_run.clear_number}" if dag_run.clear_number else dag_run.run_id


def deliveries_of(dag_run, *states: str) -> list[dict]:
    """The deliveries of a run of the DAG in these states."""
    found = []
    for state in states:
        listed = subprocess.check_output([HOST, "--json", "deliveries", "list", "--state", state])
        found += [d for d in json.loads(listed)["deliveries"] if (d["run"] or "").split("~")[0] == dag_run.run_id]
    return found


class RunInterval(BaseOperator):
    """Has the host run one data interval of a job."""

    template_fields = ("job", "interval")

    def __init__(self, *, job: str, interval: str, **kwargs):
        super().__init__(**kwargs)
        self.job = job
        self.interval = interval

    @cached_property
    def process(self) -> SubprocessHook:
        return SubprocessHook()

    def execute(self, context):
        command = [HOST, "run", self.job, "--interval", self.interval, "--run", name_of(context["dag_run"])]
        check_exit(self.process.run_command(command).exit_code)

    def on_kill(self):
        self.process.send_sigterm()


# A plain "@daily" is a point in time in Airflow 3, where the data interval is empty; this timetable has intervals. Its zone
# is that of the jobs: where it is not, the host refuses the interval, since it cuts days.
@dag(
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=datetime(2025, 10, 1, tzinfo=timezone.utc),
    catchup=False,
    default_args={"pool": POOL, "retries": 5, "retry_delay": timedelta(seconds=30), "retry_exponential_backoff": True},
)
def shop():
    @task
    def days(data_interval_start=None, data_interval_end=None) -> list[str]:
        """The days of the data interval, as START/END. Those of UTC, which all have 24 hours."""
        if data_interval_start is None:
            raise AirflowFailException("the run has no data interval: give it a logical date")
        found = []
        while data_interval_start < data_interval_end:
            end = data_interval_start + timedelta(days=1)
            found.append(f"{data_interval_start.isoformat()}/{end.isoformat()}")
            data_interval_start = end
        return found

    @task.sensor(poke_interval=10, timeout=3600, mode="reschedule")
    def deliveries(dag_run=None) -> bool:
        """Waits until dbt has built what this run published, and fails where it could not. Any process of the host may be
        at it, also one of another run; what nobody is at, since a process died, is sent here."""
        code = subprocess.run([HOST, "deliveries", "send"]).returncode
        # 4 and 75 are about deliveries of any run; what became of those of this one is asked for below.
        check_exit(0 if code in (4, 75) else code)
        if left := deliveries_of(dag_run, "dead", "unknown"):
            why = "\n".join(f"{d['delivery']['key']}: {d['note']}" for d in left)
            raise AirflowFailException(f"a person has to decide about these deliveries:\n{why}")
        return not deliveries_of(dag_run, "released", "sending")

    run = RunInterval.partial(task_id="run", map_index_template="{{ task.job }} {{ task.interval }}")
    run.expand(job=JOBS, interval=days()) >> deliveries()


shop()
