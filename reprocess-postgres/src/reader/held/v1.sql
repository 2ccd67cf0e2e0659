-- The copy of a pin is the table `source_held_` with the number behind it, made in the same transaction.
CREATE TABLE reprocess.source_held (
    held   bigint NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest text   COLLATE "C" NOT NULL UNIQUE,
    pin    text   NOT NULL,
    layout text   NOT NULL
);
