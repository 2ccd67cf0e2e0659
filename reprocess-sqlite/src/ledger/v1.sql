-- Form 1 of the ledger. Times are microseconds since 1970 in UTC; what is only shown and never searched is JSON.

CREATE TABLE reprocess_backfill (
    id            TEXT    NOT NULL,
    generation    INTEGER NOT NULL CHECK (generation >= 1),
    state         TEXT    NOT NULL CHECK (state IN (
        'planned', 'approved', 'running', 'awaiting_review', 'stale', 'publishing', 'published',
        'propagating', 'done', 'closed', 'aborted', 'failed', 'cancelled', 'rolled_back')),
    concurrency   INTEGER NOT NULL,
    plan          TEXT    NOT NULL CHECK (json_valid(plan)),
    plan_digest   TEXT    NOT NULL,
    submitted_by  TEXT    NOT NULL,
    submitted_us  INTEGER NOT NULL,
    changed_us    INTEGER NOT NULL,
    note          TEXT,
    PRIMARY KEY (id, generation)
) STRICT;

CREATE INDEX reprocess_backfill_state ON reprocess_backfill (state);

CREATE TABLE reprocess_approval (
    backfill      TEXT    NOT NULL,
    generation    INTEGER NOT NULL,
    no            INTEGER NOT NULL CHECK (no >= 0),
    approved_by   TEXT    NOT NULL,
    approved_us   INTEGER NOT NULL,
    digest        TEXT    NOT NULL,
    comment       TEXT    NOT NULL,
    PRIMARY KEY (backfill, generation, no),
    FOREIGN KEY (backfill, generation) REFERENCES reprocess_backfill (id, generation)
) STRICT, WITHOUT ROWID;

-- What the tasks of a backfill may touch: one row for each key.
CREATE TABLE reprocess_touched (
    backfill      TEXT    NOT NULL,
    generation    INTEGER NOT NULL,
    table_id      TEXT    NOT NULL,
    partition     TEXT    NOT NULL,
    key           TEXT    NOT NULL CHECK (json_type(key) = 'object'),
    PRIMARY KEY (backfill, generation, table_id, partition),
    FOREIGN KEY (backfill, generation) REFERENCES reprocess_backfill (id, generation)
) STRICT, WITHOUT ROWID;

CREATE TABLE reprocess_task (
    backfill      TEXT    NOT NULL,
    generation    INTEGER NOT NULL,
    no            INTEGER NOT NULL CHECK (no >= 0),
    job           TEXT    NOT NULL,
    logic         TEXT    NOT NULL,
    state         TEXT    NOT NULL CHECK (state IN (
        'pending', 'claimed', 'staged', 'committed', 'skipped', 'failed', 'blocked', 'cancelled')),
    succeeded     INTEGER NOT NULL AS (state IN ('staged', 'committed', 'skipped')) VIRTUAL,
    -- How many of the tasks before it have not succeeded; kept by the trigger below.
    waiting       INTEGER NOT NULL CHECK (waiting >= 0),
    attempt       INTEGER NOT NULL CHECK (attempt >= 0),
    worker        TEXT,
    expires_us    INTEGER,
    queued_us     INTEGER NOT NULL,
    started_us    INTEGER,
    finished_us   INTEGER,
    note          TEXT,
    result        TEXT    CHECK (json_valid(result)),
    PRIMARY KEY (backfill, generation, no),
    FOREIGN KEY (backfill, generation) REFERENCES reprocess_backfill (id, generation),
    CHECK ((state = 'claimed') = (expires_us IS NOT NULL)),
    CHECK (state <> 'claimed' OR (attempt >= 1 AND worker IS NOT NULL AND started_us IS NOT NULL)),
    CHECK (state <> 'staged' OR result IS NOT NULL)
) STRICT;

CREATE INDEX reprocess_task_ready ON reprocess_task (backfill, generation, no)
    WHERE state = 'pending' AND waiting = 0;
CREATE INDEX reprocess_task_claimed ON reprocess_task (backfill, generation, expires_us)
    WHERE state = 'claimed';
CREATE INDEX reprocess_task_progress ON reprocess_task (backfill, generation, state, started_us, finished_us);

CREATE TABLE reprocess_task_after (
    backfill      TEXT    NOT NULL,
    generation    INTEGER NOT NULL,
    before        INTEGER NOT NULL,
    no            INTEGER NOT NULL CHECK (no > before),
    PRIMARY KEY (backfill, generation, before, no),
    FOREIGN KEY (backfill, generation, before) REFERENCES reprocess_task (backfill, generation, no),
    FOREIGN KEY (backfill, generation, no) REFERENCES reprocess_task (backfill, generation, no)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER reprocess_task_succeeded AFTER UPDATE OF state ON reprocess_task
    WHEN OLD.succeeded <> NEW.succeeded
BEGIN
    UPDATE reprocess_task SET waiting = waiting + OLD.succeeded - NEW.succeeded
    WHERE backfill = NEW.backfill AND generation = NEW.generation AND no IN (
        SELECT no FROM reprocess_task_after
        WHERE backfill = NEW.backfill AND generation = NEW.generation AND before = NEW.no);
END;

-- The sets of columns that keys of a table bind; few, so that a question about a key needs few index searches.
CREATE TABLE reprocess_shape (
    shape         INTEGER PRIMARY KEY,
    table_id      TEXT    NOT NULL,
    columns       TEXT    NOT NULL CHECK (json_type(columns) = 'array'),
    UNIQUE (table_id, columns)
) STRICT;

CREATE TABLE reprocess_run (
    position      INTEGER PRIMARY KEY AUTOINCREMENT,
    stamp         TEXT    NOT NULL CHECK (json_type(stamp) = 'object'),
    shape         INTEGER NOT NULL REFERENCES reprocess_shape (shape),
    -- The Hive form with columns in alphabetical order.
    partition     TEXT    NOT NULL,
    key           TEXT    NOT NULL CHECK (json_type(key) = 'object'),
    table_id      TEXT    NOT NULL,
    job           TEXT    NOT NULL,
    run           TEXT    NOT NULL,
    backfill      TEXT,
    triggered_by  TEXT    NOT NULL CHECK (triggered_by IN (
        'scheduled', 'manual', 'backfill', 'propagated', 'rollback')),
    status        TEXT    NOT NULL CHECK (status IN ('committed', 'failed')),
    is_current    INTEGER NOT NULL CHECK (is_current IN (0, 1)),
    logic         TEXT,
    fingerprint   TEXT,
    queued_us     INTEGER NOT NULL,
    started_us    INTEGER NOT NULL,
    finished_us   INTEGER NOT NULL,
    -- Of commits of tables elsewhere, which the ledger may be told of late and out of order.
    commit_order  INTEGER,
    record        TEXT    NOT NULL CHECK (json_valid(record)),
    UNIQUE (stamp, partition),
    CHECK (is_current = 0 OR status = 'committed')
) STRICT;

CREATE INDEX reprocess_run_shape ON reprocess_run (shape);
CREATE INDEX reprocess_run_place ON reprocess_run (shape, partition);
CREATE UNIQUE INDEX reprocess_run_current ON reprocess_run (shape, partition) WHERE is_current = 1;
CREATE INDEX reprocess_run_recent ON reprocess_run (job) WHERE is_current = 1;
CREATE INDEX reprocess_run_logic ON reprocess_run (job, logic, table_id, key, run) WHERE is_current = 1;
CREATE INDEX reprocess_run_order ON reprocess_run (table_id, commit_order) WHERE commit_order IS NOT NULL;
CREATE INDEX reprocess_run_run ON reprocess_run (run);
CREATE INDEX reprocess_run_backfill ON reprocess_run (backfill) WHERE backfill IS NOT NULL;
CREATE INDEX reprocess_run_started ON reprocess_run (started_us, triggered_by, queued_us);

-- The last lease of every scope, held or not: one that a later one overlaps is gone, and its fence with it.
CREATE TABLE reprocess_lease (
    token         INTEGER PRIMARY KEY AUTOINCREMENT,
    table_id      TEXT    NOT NULL,
    holder        TEXT    NOT NULL,
    ended         INTEGER NOT NULL CHECK (ended IN (0, 1)),
    expires_us    INTEGER NOT NULL
) STRICT;

CREATE TABLE reprocess_lease_key (
    shape         INTEGER NOT NULL REFERENCES reprocess_shape (shape),
    partition     TEXT    NOT NULL,
    token         INTEGER NOT NULL REFERENCES reprocess_lease (token) ON DELETE CASCADE,
    PRIMARY KEY (shape, partition, token)
) STRICT, WITHOUT ROWID;

CREATE INDEX reprocess_lease_key_token ON reprocess_lease_key (token);

CREATE TABLE reprocess_delivery (
    position      INTEGER PRIMARY KEY AUTOINCREMENT,
    stamp         TEXT    NOT NULL CHECK (json_type(stamp) = 'object'),
    attempt       INTEGER NOT NULL CHECK (attempt >= 1),
    run           TEXT    NOT NULL,
    generation    INTEGER NOT NULL,
    backfill      TEXT,
    key           TEXT    NOT NULL,
    channel       TEXT    NOT NULL,
    payload       TEXT    NOT NULL CHECK (json_valid(payload)),
    state         TEXT    NOT NULL CHECK (state IN (
        'prepared', 'suppressed', 'released', 'duplicate', 'withdrawn')),
    changed_us    INTEGER NOT NULL,
    released_by   TEXT,
    CHECK (state = 'released' OR released_by IS NULL)
) STRICT;

-- An event is delivered at most once.
CREATE UNIQUE INDEX reprocess_delivery_released ON reprocess_delivery (key) WHERE state = 'released';
CREATE INDEX reprocess_delivery_state ON reprocess_delivery (state, key);
CREATE INDEX reprocess_delivery_stamp ON reprocess_delivery (stamp, attempt);
CREATE INDEX reprocess_delivery_run ON reprocess_delivery (run);
CREATE INDEX reprocess_delivery_backfill ON reprocess_delivery (backfill, generation);

CREATE TABLE reprocess_stale (
    shape         INTEGER NOT NULL REFERENCES reprocess_shape (shape),
    partition     TEXT    NOT NULL,
    job           TEXT    NOT NULL,
    table_id      TEXT    NOT NULL,
    key           TEXT    NOT NULL CHECK (json_type(key) = 'object'),
    because       TEXT    NOT NULL,
    position      INTEGER NOT NULL CHECK (position >= 1),
    PRIMARY KEY (shape, partition, job, because)
) STRICT, WITHOUT ROWID;
