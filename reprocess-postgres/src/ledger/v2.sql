-- Form 2 of the ledger: deliveries are sent, and some are of no staged set.

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
