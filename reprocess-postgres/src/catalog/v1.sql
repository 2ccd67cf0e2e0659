CREATE TABLE reprocess.table_registry (
    t            bigint  NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    table_id     text    NOT NULL UNIQUE,
    relation     oid     NOT NULL,
    adopted      boolean NOT NULL,
    partitioning text    NOT NULL,
    columns      text    NOT NULL
);
-- The partitions of a partitioned table, at every level, as they were when they were last taken on. by_column is the one
-- column by which the table above is partitioned, where it is one.
CREATE TABLE reprocess.table_child (
    t         bigint NOT NULL REFERENCES reprocess.table_registry,
    relation  oid    NOT NULL,
    by_column text,
    bounds    text   NOT NULL,
    PRIMARY KEY (t, relation)
);
CREATE TABLE reprocess.table_seq (
    t   bigint NOT NULL PRIMARY KEY REFERENCES reprocess.table_registry,
    seq bigint NOT NULL CHECK (seq >= 0)
) WITH (fillfactor = 10);
CREATE TABLE reprocess.table_change (
    t         bigint NOT NULL,
    shape     text   COLLATE "C" NOT NULL,
    partition text   COLLATE "C" NOT NULL,
    seq       bigint NOT NULL CHECK (seq > 0),
    PRIMARY KEY (t, shape, partition, seq)
);
CREATE INDEX table_change_by_seq ON reprocess.table_change (t, seq);
-- What others changed, as the triggers log it. Nobody waits for anybody here: rows are only added, and those that are
-- old are put together. first_xid to last_xid are the transactions of a row, weight is how many changes it stands for.
CREATE TABLE reprocess.table_foreign (
    t         bigint NOT NULL,
    key       jsonb  NOT NULL,
    first_xid xid8   NOT NULL,
    last_xid  xid8   NOT NULL,
    weight    bigint NOT NULL CHECK (weight > 0)
);
CREATE INDEX table_foreign_by_table ON reprocess.table_foreign (t);
CREATE TABLE reprocess.table_commit (
    t       bigint NOT NULL,
    seq     bigint NOT NULL,
    outcome text   NOT NULL,
    PRIMARY KEY (t, seq)
);
CREATE TABLE reprocess.table_stamp (
    t       bigint NOT NULL,
    digest  text   NOT NULL,
    stamp   text   NOT NULL,
    attempt bigint NOT NULL,
    seq     bigint NOT NULL,
    PRIMARY KEY (t, digest),
    FOREIGN KEY (t, seq) REFERENCES reprocess.table_commit
);
CREATE SEQUENCE reprocess.table_kept_number;
CREATE TABLE reprocess.table_kept_rows (
    kept_rows bigint NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    t         bigint NOT NULL,
    digest    text   NOT NULL,
    columns   text   NOT NULL,
    -- Whether it is a partition that was replaced, and so of one entry alone.
    alone     boolean NOT NULL DEFAULT false,
    UNIQUE (t, digest)
);
CREATE TABLE reprocess.table_kept (
    kept      bigint NOT NULL,
    entry     bigint NOT NULL,
    t         bigint NOT NULL,
    detail    text   NOT NULL,
    kept_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    kept_rows bigint NOT NULL REFERENCES reprocess.table_kept_rows,
    PRIMARY KEY (kept, entry)
);
CREATE INDEX table_kept_by_age ON reprocess.table_kept (t, kept_at);
CREATE TABLE reprocess.table_staged (
    n         bigint  NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    table_id  text    NOT NULL,
    digest    text    NOT NULL,
    stamp     text    NOT NULL,
    attempt   bigint  NOT NULL,
    run       text    NOT NULL,
    begun_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    complete  boolean NOT NULL,
    layout    text    NOT NULL,
    staged    text,
    row_count bigint,
    -- Of a set that can take the place of a partition: that partition, and the transaction that completed the set.
    waiting   text,
    built     xid8,
    CHECK (complete = (staged IS NOT NULL AND row_count IS NOT NULL))
);
CREATE INDEX table_staged_by_stamp ON reprocess.table_staged (digest, attempt);
CREATE INDEX table_staged_by_table ON reprocess.table_staged (table_id);
