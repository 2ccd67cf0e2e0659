-- Form 2 of the ledger: deliveries are sent, and some are of no staged set.

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
