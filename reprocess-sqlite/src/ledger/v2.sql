-- Form 2 of the ledger: deliveries are sent, and some are of no staged set; downstream tasks; backfills are paused.

ALTER TABLE reprocess_delivery RENAME TO reprocess_delivery_of_form_1;

CREATE TABLE reprocess_delivery (
    position      INTEGER PRIMARY KEY AUTOINCREMENT,
    stamp         TEXT    CHECK (json_type(stamp) = 'object'),
    attempt       INTEGER CHECK (attempt >= 1),
    run           TEXT,
    generation    INTEGER,
    backfill      TEXT,
    key           TEXT    NOT NULL,
    channel       TEXT    NOT NULL,
    payload       TEXT    NOT NULL CHECK (json_valid(payload)),
    state         TEXT    NOT NULL CHECK (state IN (
        'prepared', 'suppressed', 'released', 'sending', 'sent', 'unknown', 'dead', 'duplicate', 'withdrawn')),
    changed_us    INTEGER NOT NULL,
    -- Who released it, or decided about it last.
    released_by   TEXT,
    attempts      INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    due_us        INTEGER,
    in_doubt      INTEGER NOT NULL DEFAULT 0 CHECK (in_doubt IN (0, 1)),
    taken_by      TEXT,
    expires_us    INTEGER,
    note          TEXT,
    CHECK ((stamp IS NULL) = (attempt IS NULL)),
    CHECK ((state = 'sending') = (expires_us IS NOT NULL)),
    CHECK ((state IN ('released', 'sending', 'sent', 'unknown', 'dead')) OR released_by IS NULL)
) STRICT;

INSERT INTO reprocess_delivery (
    position, stamp, attempt, run, generation, backfill, key, channel, payload, state, changed_us, released_by)
SELECT position, stamp, attempt, run, generation, backfill, key, channel, payload, state, changed_us, released_by
FROM reprocess_delivery_of_form_1 ORDER BY position;

DROP TABLE reprocess_delivery_of_form_1;

-- An event is delivered at most once.
CREATE UNIQUE INDEX reprocess_delivery_released ON reprocess_delivery (key)
    WHERE state IN ('released', 'sending', 'sent', 'unknown', 'dead');
CREATE INDEX reprocess_delivery_open ON reprocess_delivery (channel, position)
    WHERE state IN ('released', 'sending');
CREATE INDEX reprocess_delivery_state ON reprocess_delivery (state, key);
CREATE INDEX reprocess_delivery_key ON reprocess_delivery (key);
CREATE INDEX reprocess_delivery_stamp ON reprocess_delivery (stamp, attempt);
CREATE INDEX reprocess_delivery_run ON reprocess_delivery (run);
CREATE INDEX reprocess_delivery_backfill ON reprocess_delivery (backfill, generation);

ALTER TABLE reprocess_backfill ADD COLUMN paused_by TEXT;

-- Whether the task waits for the publication of a shadow.
ALTER TABLE reprocess_task ADD COLUMN after_publication INTEGER NOT NULL DEFAULT 0 CHECK (after_publication IN (0, 1));

-- `waiting` counts the tasks before one that are still in its way, which those that a reviewer discarded are not.
DROP TRIGGER reprocess_task_succeeded;
ALTER TABLE reprocess_task DROP COLUMN succeeded;
ALTER TABLE reprocess_task ADD COLUMN settled INTEGER NOT NULL
    AS (state IN ('staged', 'committed', 'skipped', 'cancelled')) VIRTUAL;
CREATE TRIGGER reprocess_task_settled AFTER UPDATE OF state ON reprocess_task
    WHEN OLD.settled <> NEW.settled
BEGIN
    UPDATE reprocess_task SET waiting = waiting + OLD.settled - NEW.settled
    WHERE backfill = NEW.backfill AND generation = NEW.generation AND no IN (
        SELECT no FROM reprocess_task_after
        WHERE backfill = NEW.backfill AND generation = NEW.generation AND before = NEW.no);
END;
UPDATE reprocess_task AS t SET waiting = waiting - (
    SELECT count(*) FROM reprocess_task_after AS a JOIN reprocess_task AS b
        ON b.backfill = a.backfill AND b.generation = a.generation AND b.no = a.before
    WHERE a.backfill = t.backfill AND a.generation = t.generation AND a.no = t.no AND b.state = 'cancelled');
