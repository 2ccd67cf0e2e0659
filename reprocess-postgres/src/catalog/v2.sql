-- The partitions of a partitioned table, at every level, as they were when they were last taken on. by_column is the one
-- column by which the table above is partitioned, where it is one.
CREATE TABLE reprocess.table_child (
    t         bigint NOT NULL REFERENCES reprocess.table_registry,
    relation  oid    NOT NULL,
    by_column text,
    bounds    text   NOT NULL,
    PRIMARY KEY (t, relation)
);
-- Of a staged set that can take the place of a partition: that partition, and the transaction that completed the set.
ALTER TABLE reprocess.table_staged ADD COLUMN waiting text, ADD COLUMN built xid8;
-- Whether the table of kept rows is a partition that was replaced, and so of one entry alone.
ALTER TABLE reprocess.table_kept_rows ADD COLUMN alone boolean NOT NULL DEFAULT false;
