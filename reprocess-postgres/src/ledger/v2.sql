-- Form 2 of the ledger: deliveries are sent, and some are of no staged set; downstream tasks; backfills are paused.

ALTER TABLE reprocess.delivery
    ALTER COLUMN stamp DROP NOT NULL,
    ALTER COLUMN attempt DROP NOT NULL,
    ALTER COLUMN run DROP NOT NULL,
    ALTER COLUMN generation DROP NOT NULL,
    DROP CONSTRAINT delivery_state_check,
    DROP CONSTRAINT delivery_check,
    -- `released_by` is who released it, or decided about it last.
    ADD COLUMN attempts   bigint  NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    ADD COLUMN due_at     reprocess.instant,
    ADD COLUMN in_doubt   boolean NOT NULL DEFAULT false,
    ADD COLUMN taken_by   text,
    ADD COLUMN expires_at reprocess.instant,
    ADD COLUMN note       text,
    ADD CHECK (state IN (
        'prepared', 'suppressed', 'released', 'sending', 'sent', 'unknown', 'dead', 'duplicate', 'withdrawn')),
    ADD CHECK ((stamp IS NULL) = (attempt IS NULL)),
    ADD CHECK ((state = 'sending') = (expires_at IS NOT NULL)),
    ADD CHECK ((state IN ('released', 'sending', 'sent', 'unknown', 'dead')) OR released_by IS NULL);

-- An event is delivered at most once.
DROP INDEX reprocess.delivery_released;
CREATE UNIQUE INDEX delivery_released ON reprocess.delivery (key)
    WHERE state IN ('released', 'sending', 'sent', 'unknown', 'dead');
CREATE INDEX delivery_open ON reprocess.delivery (channel, position) WHERE state IN ('released', 'sending');
CREATE INDEX delivery_key ON reprocess.delivery (key);

ALTER TABLE reprocess.backfill ADD COLUMN paused_by text;

-- Whether the task waits for the publication of a shadow.
ALTER TABLE reprocess.task ADD COLUMN after_publication boolean NOT NULL DEFAULT false;

-- `waiting` counts the tasks before one that are still in its way, which those that a reviewer discarded are not.
DROP TRIGGER task_succeeded ON reprocess.task;
DROP FUNCTION reprocess.task_succeeded();
ALTER TABLE reprocess.task DROP COLUMN succeeded;
ALTER TABLE reprocess.task ADD COLUMN settled boolean NOT NULL
    GENERATED ALWAYS AS (state IN ('staged', 'committed', 'skipped', 'cancelled')) STORED;
CREATE FUNCTION reprocess.task_settled() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    UPDATE reprocess.task AS t SET waiting = t.waiting + OLD.settled::integer - NEW.settled::integer
    FROM reprocess.task_after AS a
    WHERE a.backfill = NEW.backfill AND a.generation = NEW.generation AND a.before = NEW.no
        AND t.backfill = a.backfill AND t.generation = a.generation AND t.no = a.no;
    RETURN NULL;
END
$body$;
CREATE TRIGGER task_settled AFTER UPDATE OF state ON reprocess.task
    FOR EACH ROW WHEN (OLD.settled <> NEW.settled) EXECUTE FUNCTION reprocess.task_settled();
UPDATE reprocess.task AS t SET waiting = t.waiting - c.cancelled
FROM (SELECT a.backfill, a.generation, a.no, count(*) AS cancelled FROM reprocess.task_after AS a
      JOIN reprocess.task AS b ON b.backfill = a.backfill AND b.generation = a.generation AND b.no = a.before
      WHERE b.state = 'cancelled' GROUP BY a.backfill, a.generation, a.no) AS c
WHERE t.backfill = c.backfill AND t.generation = c.generation AND t.no = c.no;
