//! Wide rows of orders, as a warehouse has them: fourteen columns, about 170 bytes a row, with a primary key and an index
//! whose values are spread over the whole table.

use std::sync::Arc;

use reprocess::arrow::array::types::{Date32Type, Decimal128Type};
use reprocess::arrow::array::{
    ArrayRef, Date32Array, Float64Array, Int32Array, Int64Array, PrimitiveArray, RecordBatch, StringArray,
    TimestampMicrosecondArray,
};
use reprocess::arrow::schema::{DataType, Field, Schema, SchemaRef, TimeUnit};

use super::rows::date;

const BATCH: usize = 8_192;
const DAY_MICROS: i64 = 86_400_000_000;

/// Orders of a day have numbers from this many times the day on.
pub(crate) const DAY_STEP: i64 = 10_000_000;

/// One order. What is not given follows from its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) day: u32,
    pub(crate) id: i64,
    /// Goes into the amount: another one makes another row.
    pub(crate) salt: i64,
}

/// The orders in batches that are made as they are asked for.
pub(crate) fn batches(
    orders: impl Iterator<Item = Order> + Send + 'static,
) -> impl Iterator<Item = RecordBatch> + Send + 'static {
    let mut orders = orders.peekable();
    std::iter::from_fn(move || {
        orders.peek()?;
        Some(batch(&orders.by_ref().take(BATCH).collect::<Vec<_>>()))
    })
}

fn batch(orders: &[Order]) -> RecordBatch {
    let int64 =
        |of: fn(&Order) -> i64| Arc::new(Int64Array::from_iter_values(orders.iter().map(of))) as ArrayRef;
    let int32 = |of: fn(&Order) -> i64| {
        Arc::new(Int32Array::from_iter_values(orders.iter().map(|o| i32::try_from(of(o)).unwrap())))
            as ArrayRef
    };
    let text =
        |of: fn(&Order) -> String| Arc::new(StringArray::from_iter_values(orders.iter().map(of))) as ArrayRef;
    let dates = orders.iter().map(|o| Date32Type::from_naive_date(date(o.day)));
    let instants = orders.iter().map(|o| {
        i64::from(Date32Type::from_naive_date(date(o.day))) * DAY_MICROS
            + o.id % DAY_STEP * 800_000 % DAY_MICROS
    });
    let amounts = orders.iter().map(|o| i128::from(o.id % 90_000 + 100 * o.salt));
    let amounts = PrimitiveArray::<Decimal128Type>::from_iter_values(amounts).with_precision_and_scale(12, 2);
    let notes =
        orders.iter().map(|o| (o.id % 2 == 0).then(|| format!("left at the door of number {:020}", o.id)));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Date32Array::from_iter_values(dates)),
        int64(|o| o.id),
        Arc::new(TimestampMicrosecondArray::from_iter_values(instants).with_timezone("UTC")),
        int64(|o| o.id.wrapping_mul(2_654_435_761).rem_euclid(1_000_003)),
        int32(|o| o.id % 7),
        text(|o| ["web", "app", "shop"][usize::try_from(o.id % 3).unwrap()].to_owned()),
        text(|o| ["paid", "sent", "returned", "open"][usize::try_from(o.id % 4).unwrap()].to_owned()),
        text(|o| ["EUR", "USD"][usize::try_from(o.id % 2).unwrap()].to_owned()),
        int32(|o| o.id % 1_000),
        Arc::new(amounts.unwrap()),
        Arc::new(Float64Array::from_iter_values(
            orders.iter().map(|o| f64::from(i32::try_from(o.id % 10_007).unwrap()) / 8.0),
        )),
        text(|o| format!("sku {:08}", o.id % 100_003)),
        text(|o| format!("warehouse {}", o.id % 97)),
        Arc::new(StringArray::from_iter(notes)),
    ];
    RecordBatch::try_new(schema(), columns).unwrap()
}

/// The columns.
pub(crate) fn schema() -> SchemaRef {
    let of = |name: &str, of: DataType| Field::new(name, of, name == "note");
    Arc::new(Schema::new(vec![
        of("day", DataType::Date32),
        of("id", DataType::Int64),
        of("created_at", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))),
        of("customer", DataType::Int64),
        of("channel_code", DataType::Int32),
        of("channel", DataType::Utf8),
        of("status", DataType::Utf8),
        of("currency", DataType::Utf8),
        of("items", DataType::Int32),
        of("amount", DataType::Decimal128(12, 2)),
        of("weight", DataType::Float64),
        of("sku", DataType::Utf8),
        of("warehouse", DataType::Utf8),
        of("note", DataType::Utf8),
    ]))
}

/// The same in partitions by day.
pub(crate) fn partitioned(name: &str, days: u32, orders: u32) -> String {
    let plain = filled("rows_of_days", "day, id", days, orders);
    let children: Vec<_> = (0..days)
        .map(|day| {
            let (from, to) = (date(day), date(day + 1));
            format!("CREATE TABLE {name}_{day} PARTITION OF {name} FOR VALUES FROM ('{from}') TO ('{to}')")
        })
        .collect();
    format!(
        "{plain};
         CREATE TABLE {name} (LIKE rows_of_days, PRIMARY KEY (day, id)) PARTITION BY RANGE (day);
         CREATE INDEX ON {name} (customer);
         {};
         INSERT INTO {name} SELECT * FROM rows_of_days;
         DROP TABLE rows_of_days",
        children.join(";")
    )
}

/// Statements that make a table of so many days of so many orders, none changed, with its key and its index.
pub(crate) fn filled(name: &str, key: &str, days: u32, orders: u32) -> String {
    format!(
        "CREATE TABLE {name} (
             day date NOT NULL, id bigint NOT NULL, created_at timestamptz NOT NULL, customer bigint NOT NULL,
             channel_code integer NOT NULL, channel text NOT NULL, status text NOT NULL, currency text NOT NULL,
             items integer NOT NULL, amount numeric(12,2) NOT NULL, weight double precision NOT NULL,
             sku text NOT NULL, warehouse text NOT NULL, note text);
         INSERT INTO {name}
         SELECT date '2026-01-01' + d, id,
                (date '2026-01-01' + d)::timestamp AT TIME ZONE 'UTC' + (i * 0.8 % 86400) * interval '1 s',
                (id * 2654435761) % 1000003, id % 7, (ARRAY['web', 'app', 'shop'])[id % 3 + 1],
                (ARRAY['paid', 'sent', 'returned', 'open'])[id % 4 + 1], (ARRAY['EUR', 'USD'])[id % 2 + 1],
                id % 1000, (id % 90000) / 100.0, (id % 10007) / 8.0, 'sku ' || lpad((id % 100003)::text, 8, '0'),
                'warehouse ' || id % 97,
                CASE WHEN id % 2 = 0 THEN 'left at the door of number ' || lpad(id::text, 20, '0') END
         FROM generate_series(0, {days} - 1) AS d, generate_series(0, {orders} - 1) AS i,
              LATERAL (SELECT d::bigint * {DAY_STEP} + i AS id) AS n;
         ALTER TABLE {name} ADD PRIMARY KEY ({key});
         CREATE INDEX ON {name} (customer);
         VACUUM ANALYZE {name}"
    )
}
