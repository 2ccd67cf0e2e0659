-- Form 3 of the ledger: slots of pools.

-- Tasks that want a slot of a pool, or have one.
CREATE TABLE reprocess_slot (
    pool          TEXT    NOT NULL,
    holder        TEXT    NOT NULL,
    class         TEXT    NOT NULL CHECK (class IN ('scheduled', 'backfill')),
    priority      INTEGER NOT NULL,
    asked_us      INTEGER NOT NULL,
    has_slot      INTEGER NOT NULL CHECK (has_slot IN (0, 1)),
    expires_us    INTEGER NOT NULL,
    PRIMARY KEY (pool, holder)
) STRICT, WITHOUT ROWID;
