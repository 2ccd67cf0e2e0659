-- The shop's own table, which the host reads and never writes.
CREATE SCHEMA shop;
CREATE TABLE shop.orders (
    id bigint PRIMARY KEY, day date NOT NULL, amount numeric(12, 2) NOT NULL, refunded boolean NOT NULL DEFAULT false
);
INSERT INTO shop.orders VALUES
    (1, '2025-10-25', 100.00, false), (2, '2025-10-25', 20.50, false), (3, '2025-10-25', 50.00, true),
    (4, '2025-10-26', 70.00, false),
    (5, '2025-10-27', 30.00, false), (6, '2025-10-27', 12.30, false), (7, '2025-10-27', 5.00, true);
