-- Form 1 of the ledger. What is only shown and never searched is JSON, as it was written.

-- What a client can hold.
CREATE DOMAIN reprocess.instant AS timestamptz
    CHECK (isfinite(VALUE) AND VALUE < '262143-01-01 00:00:00+00');

-- One row: the position of the last row of a run. Whoever writes what is ordered locks it first, so that positions
-- become visible in their order.
CREATE TABLE reprocess.ledger (
    the_one       boolean NOT NULL DEFAULT true PRIMARY KEY CHECK (the_one),
    position      bigint  NOT NULL CHECK (position >= 0)
) WITH (fillfactor = 10);

INSERT INTO reprocess.ledger (position) VALUES (0);

CREATE TABLE reprocess.backfill (
    id            text    NOT NULL COLLATE "C",
    generation    bigint  NOT NULL CHECK (generation >= 1),
    state         text    NOT NULL CHECK (state IN (
        'planned', 'approved', 'running', 'awaiting_review', 'stale', 'publishing', 'published',
        'propagating', 'done', 'closed', 'aborted', 'failed', 'cancelled', 'rolled_back')),
    concurrency   bigint  NOT NULL CHECK (concurrency >= 0),
    plan          json    NOT NULL,
    plan_digest   text    NOT NULL,
    submitted_by  text    NOT NULL,
    submitted_at  reprocess.instant NOT NULL,
    changed_at    reprocess.instant NOT NULL,
    note          text,
    PRIMARY KEY (id, generation)
);

-- A backfill holds partitions in one generation at a time.
CREATE UNIQUE INDEX backfill_open ON reprocess.backfill (id)
    WHERE (state IN ('planned', 'approved', 'running', 'awaiting_review', 'stale', 'publishing', 'failed'));
CREATE INDEX backfill_state ON reprocess.backfill (state);

CREATE TABLE reprocess.approval (
    backfill      text    NOT NULL COLLATE "C",
    generation    bigint  NOT NULL,
    no            bigint  NOT NULL CHECK (no >= 0),
    approved_by   text    NOT NULL,
    approved_at   reprocess.instant NOT NULL,
    digest        text    NOT NULL,
    comment       text    NOT NULL,
    PRIMARY KEY (backfill, generation, no),
    FOREIGN KEY (backfill, generation) REFERENCES reprocess.backfill (id, generation)
);

-- What the tasks of a backfill may touch: one row for each key.
CREATE TABLE reprocess.touched (
    backfill      text    NOT NULL COLLATE "C",
    generation    bigint  NOT NULL,
    table_id      text    NOT NULL COLLATE "C",
    partition     text    NOT NULL COLLATE "C",
    key           text    NOT NULL CHECK (json_typeof(key::json) = 'object'),
    PRIMARY KEY (backfill, generation, table_id, partition),
    FOREIGN KEY (backfill, generation) REFERENCES reprocess.backfill (id, generation)
);

CREATE TABLE reprocess.task (
    backfill      text    NOT NULL COLLATE "C",
    generation    bigint  NOT NULL,
    no            bigint  NOT NULL CHECK (no >= 0),
    job           text    NOT NULL,
    logic         text    NOT NULL,
    state         text    NOT NULL CHECK (state IN (
        'pending', 'claimed', 'staged', 'committed', 'skipped', 'failed', 'blocked', 'cancelled')),
    succeeded     boolean NOT NULL GENERATED ALWAYS AS (state IN ('staged', 'committed', 'skipped')) STORED,
    -- How many of the tasks before it have not succeeded; kept by the trigger below.
    waiting       bigint  NOT NULL CHECK (waiting >= 0),
    attempt       bigint  NOT NULL CHECK (attempt >= 0),
    worker        text,
    expires_at    timestamptz,
    queued_at     reprocess.instant NOT NULL,
    started_at    reprocess.instant,
    finished_at   reprocess.instant,
    note          text,
    result        json,
    PRIMARY KEY (backfill, generation, no),
    FOREIGN KEY (backfill, generation) REFERENCES reprocess.backfill (id, generation),
    CHECK ((state = 'claimed') = (expires_at IS NOT NULL)),
    CHECK (state <> 'claimed' OR (attempt >= 1 AND worker IS NOT NULL AND started_at IS NOT NULL)),
    CHECK (state <> 'staged' OR result IS NOT NULL)
);

CREATE INDEX task_ready ON reprocess.task (backfill, generation, no) WHERE state = 'pending' AND waiting = 0;
CREATE INDEX task_claimed ON reprocess.task (backfill, generation, expires_at) WHERE state = 'claimed';
-- The state first: before the table is analysed, an index that begins as the primary key does would be taken for it, and
-- each foreign key that is checked would read all tasks of the backfill.
CREATE INDEX task_progress ON reprocess.task (state, backfill, generation) INCLUDE (started_at, finished_at);

CREATE TABLE reprocess.task_after (
    backfill      text    NOT NULL COLLATE "C",
    generation    bigint  NOT NULL,
    before        bigint  NOT NULL,
    no            bigint  NOT NULL CHECK (no > before),
    PRIMARY KEY (backfill, generation, before, no),
    FOREIGN KEY (backfill, generation, before) REFERENCES reprocess.task (backfill, generation, no),
    FOREIGN KEY (backfill, generation, no) REFERENCES reprocess.task (backfill, generation, no)
);

CREATE FUNCTION reprocess.task_succeeded() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    UPDATE reprocess.task AS t SET waiting = t.waiting + OLD.succeeded::integer - NEW.succeeded::integer
    FROM reprocess.task_after AS a
    WHERE a.backfill = NEW.backfill AND a.generation = NEW.generation AND a.before = NEW.no
        AND t.backfill = a.backfill AND t.generation = a.generation AND t.no = a.no;
    RETURN NULL;
END
$body$;

CREATE TRIGGER task_succeeded AFTER UPDATE OF state ON reprocess.task
    FOR EACH ROW WHEN (OLD.succeeded <> NEW.succeeded) EXECUTE FUNCTION reprocess.task_succeeded();

-- The sets of columns that keys of a table bind; few, so that a question about a key needs few index searches.
CREATE TABLE reprocess.shape (
    shape         bigint  NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    table_id      text    NOT NULL COLLATE "C",
    columns       text    NOT NULL COLLATE "C" CHECK (json_typeof(columns::json) = 'array'),
    UNIQUE (table_id, columns)
);

CREATE TABLE reprocess.run (
    position      bigint  NOT NULL PRIMARY KEY CHECK (position >= 1),
    stamp         text    NOT NULL COLLATE "C" CHECK (json_typeof(stamp::json) = 'object'),
    shape         bigint  NOT NULL REFERENCES reprocess.shape (shape),
    -- The Hive form with columns in alphabetical order.
    partition     text    NOT NULL COLLATE "C",
    key           text    NOT NULL CHECK (json_typeof(key::json) = 'object'),
    table_id      text    NOT NULL COLLATE "C",
    job           text    NOT NULL COLLATE "C",
    run           text    NOT NULL COLLATE "C",
    backfill      text    COLLATE "C",
    triggered_by  text    NOT NULL CHECK (triggered_by IN (
        'scheduled', 'manual', 'backfill', 'propagated', 'rollback')),
    status        text    NOT NULL CHECK (status IN ('committed', 'failed')),
    is_current    boolean NOT NULL,
    -- Whether it may have changed what its partition holds.
    changes       boolean NOT NULL,
    logic         text    COLLATE "C",
    fingerprint   text,
    queued_at     reprocess.instant NOT NULL,
    started_at    reprocess.instant NOT NULL,
    finished_at   reprocess.instant NOT NULL,
    -- Of commits of tables elsewhere, which the ledger may be told of late and out of order.
    commit_order  bigint  CHECK (commit_order >= 1),
    record        json    NOT NULL,
    UNIQUE (stamp, partition),
    CHECK (status = 'committed' OR NOT (is_current OR changes))
);

CREATE INDEX run_shape ON reprocess.run (shape, position);
CREATE INDEX run_place ON reprocess.run (shape, partition);
CREATE UNIQUE INDEX run_current ON reprocess.run (shape, partition) INCLUDE (position) WHERE is_current;
CREATE INDEX run_recent ON reprocess.run (job, position) WHERE is_current;
CREATE INDEX run_logic ON reprocess.run (job, logic) INCLUDE (table_id, key, run) WHERE is_current;
CREATE INDEX run_order ON reprocess.run (table_id, commit_order) WHERE commit_order IS NOT NULL;
CREATE INDEX run_run ON reprocess.run (run, position);
CREATE INDEX run_backfill ON reprocess.run (backfill, position) WHERE backfill IS NOT NULL;
CREATE INDEX run_started ON reprocess.run (started_at) INCLUDE (triggered_by, queued_at);

-- The last lease of every scope, held or not: one that a later one overlaps is gone, and its fence with it.
CREATE TABLE reprocess.lease (
    token         bigint  NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    table_id      text    NOT NULL COLLATE "C",
    holder        text    NOT NULL,
    ended         boolean NOT NULL,
    expires_at    timestamptz NOT NULL
);

CREATE TABLE reprocess.lease_key (
    shape         bigint  NOT NULL REFERENCES reprocess.shape (shape),
    partition     text    NOT NULL COLLATE "C",
    token         bigint  NOT NULL REFERENCES reprocess.lease (token) ON DELETE CASCADE,
    PRIMARY KEY (shape, partition, token)
);

CREATE INDEX lease_key_token ON reprocess.lease_key (token);

CREATE TABLE reprocess.delivery (
    position      bigint  NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stamp         text    NOT NULL COLLATE "C" CHECK (json_typeof(stamp::json) = 'object'),
    attempt       bigint  NOT NULL CHECK (attempt >= 1),
    run           text    NOT NULL COLLATE "C",
    generation    bigint  NOT NULL,
    backfill      text    COLLATE "C",
    key           text    NOT NULL COLLATE "C",
    channel       text    NOT NULL,
    payload       json    NOT NULL,
    state         text    NOT NULL CHECK (state IN (
        'prepared', 'suppressed', 'released', 'duplicate', 'withdrawn')),
    changed_at    reprocess.instant NOT NULL,
    released_by   text,
    CHECK (state = 'released' OR released_by IS NULL)
);

-- An event is delivered at most once.
CREATE UNIQUE INDEX delivery_released ON reprocess.delivery (key) WHERE state = 'released';
CREATE INDEX delivery_state ON reprocess.delivery (state, key);
CREATE INDEX delivery_stamp ON reprocess.delivery (stamp, attempt);
CREATE INDEX delivery_run ON reprocess.delivery (run);
CREATE INDEX delivery_backfill ON reprocess.delivery (backfill, generation);

CREATE TABLE reprocess.stale (
    shape         bigint  NOT NULL REFERENCES reprocess.shape (shape),
    partition     text    NOT NULL COLLATE "C",
    job           text    NOT NULL COLLATE "C",
    table_id      text    NOT NULL COLLATE "C",
    key           text    NOT NULL CHECK (json_typeof(key::json) = 'object'),
    because       text    NOT NULL COLLATE "C",
    position      bigint  NOT NULL CHECK (position >= 1),
    PRIMARY KEY (shape, partition, job, because)
);
