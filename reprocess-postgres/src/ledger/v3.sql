-- Form 3 of the ledger: slots of pools.

-- Tasks that want a slot of a pool, or have one.
CREATE TABLE reprocess.slot (
    pool          text    NOT NULL COLLATE "C",
    holder        text    NOT NULL COLLATE "C",
    class         text    NOT NULL CHECK (class IN ('scheduled', 'backfill')),
    priority      bigint  NOT NULL,
    asked_at      reprocess.instant NOT NULL,
    has_slot      boolean NOT NULL,
    expires_at    timestamptz NOT NULL,
    PRIMARY KEY (pool, holder)
);
