//! Which rows belong to a key, a scope or a slice, as conditions in SQL.

use arrow_schema::DataType;
use chrono::{DateTime, NaiveDate, Utc};
use reprocess_core::domain::interval::Calendar;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::{AsOfSlice, Slice, TimeSlice};
use reprocess_core::domain::value::Value;
use reprocess_core::{Error, Result};

use crate::layout::{Layout, date, instant, quoted};
use crate::sql::Sql;

/// Columns and dimensions of something that can be selected from under the name `t`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) partitioning: &'a Partitioning,
}

/// A half-open range of a time column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Range {
    Dates(NaiveDate, NaiveDate),
    Instants(DateTime<Utc>, DateTime<Utc>),
}

impl Rows<'_> {
    /// The rows of a scope.
    pub(crate) fn scope(&self, scope: &Scope) -> Result<Sql> {
        if scope.is_whole_table() { Ok(Sql::all(vec![])) } else { self.keys(scope.partitions().iter()) }
    }

    /// The rows of any of the keys. Periods that touch become one range.
    pub(crate) fn keys<'k>(&self, keys: impl Iterator<Item = &'k PartitionKey>) -> Result<Sql> {
        let mut conditions = Vec::new();
        let mut ranges = Vec::new();
        for key in keys {
            let key = self.partitioning.check_key(key)?;
            match self.range_alone(&key)? {
                Some(range) => ranges.push(range),
                None => conditions.push(self.key(&key)?),
            }
        }
        ranges.sort();
        let mut merged: Vec<Range> = Vec::new();
        for range in ranges {
            match (merged.last_mut(), range) {
                (Some(Range::Dates(_, end)), Range::Dates(start, next)) if start <= *end => {
                    *end = next.max(*end);
                }
                (Some(Range::Instants(_, end)), Range::Instants(start, next)) if start <= *end => {
                    *end = next.max(*end);
                }
                _ => merged.push(range),
            }
        }
        if let Some((column, _)) = self.partitioning.time() {
            for range in merged {
                conditions.push(self.within(column, range)?);
            }
        }
        Ok(Sql::any(conditions))
    }

    /// The rows of one key.
    pub(crate) fn key(&self, key: &PartitionKey) -> Result<Sql> {
        let conditions = key.bound().map(|(column, value)| match (self.calendar(column), value) {
            (Some(calendar), value) if !value.is_null() => {
                self.within(column, self.range(column, calendar, value)?)
            }
            _ => self.equal(column, value),
        });
        Ok(Sql::all(conditions.collect::<Result<_>>()?))
    }

    /// The rows whose column has the value; NULL is a value.
    pub(crate) fn equal(&self, column: &str, value: &Value) -> Result<Sql> {
        Ok(match self.layout.value(column, value)? {
            None => Sql::new(format!("t.{} IS NULL", quoted(column))),
            Some(value) => Sql::new(format!("t.{} = ", quoted(column))).then(value),
        })
    }

    /// Selects the columns of a slice of `from`, which is the name of a table or a query in parentheses, as they are
    /// read.
    pub(crate) fn select(&self, from: Sql, slice: &Slice) -> Result<Sql> {
        let select = Sql::new(format!("SELECT {} FROM ", self.layout.readable("t.")));
        let condition = match slice {
            Slice::All => Sql::all(vec![]),
            Slice::Partitions(keys) => self.keys(keys.iter())?,
            Slice::Time(slice) => {
                Sql::all(vec![self.time(slice)?, self.key(&self.partitioning.check_key(&slice.only)?)?])
            }
            Slice::AsOf(slice) if slice.to.is_none() => return self.newest(from, slice),
            Slice::AsOf(slice) => self.effective(slice)?,
        };
        Ok(select.then(from).text(" AS t WHERE ").then(condition))
    }

    fn calendar(&self, column: &str) -> Option<&Calendar> {
        self.partitioning.time().filter(|(name, _)| *name == column).map(|(_, calendar)| calendar)
    }

    /// The range of a key that binds time and nothing else.
    fn range_alone(&self, key: &PartitionKey) -> Result<Option<Range>> {
        let mut bound = key.bound();
        match (bound.next(), bound.next()) {
            (Some((column, value)), None) if !value.is_null() => {
                self.calendar(column).map(|calendar| self.range(column, calendar, value)).transpose()
            }
            _ => Ok(None),
        }
    }

    fn range(&self, column: &str, calendar: &Calendar, value: &Value) -> Result<Range> {
        let refuse =
            || Error::invalid(format!("no {calendar} begins at `{value}`")).with_context("column", column);
        if self.is_instant(column)? {
            let interval = calendar.interval(value).ok_or_else(refuse)?;
            return Ok(Range::Instants(interval.start(), interval.end()));
        }
        match (value, calendar.step(value, 1)) {
            (Value::Date(first), Some(Value::Date(next))) => Ok(Range::Dates(*first, next)),
            _ => Err(refuse()),
        }
    }

    fn time(&self, slice: &TimeSlice) -> Result<Sql> {
        if self.is_instant(&slice.column)? {
            return self.within(&slice.column, Range::Instants(slice.interval.start(), slice.interval.end()));
        }
        let calendar = self.calendar(&slice.column).ok_or_else(|| {
            Error::invalid(format!("`{}` is not the time dimension of the table", slice.column))
        })?;
        match (&slice.first, calendar.step(&slice.last, 1)) {
            (Value::Date(first), Some(Value::Date(next))) => {
                self.within(&slice.column, Range::Dates(*first, next))
            }
            _ => {
                Err(Error::invalid(format!("column `{}` holds dates, and the slice does not", slice.column)))
            }
        }
    }

    fn within(&self, column: &str, range: Range) -> Result<Sql> {
        let name = format!("t.{}", quoted(column));
        Ok(match range {
            Range::Dates(first, next) if first.succ_opt() == Some(next) => {
                Sql::new(format!("{name} = ")).then(date(first))
            }
            Range::Dates(first, next) => Sql::new(format!("({name} >= "))
                .then(date(first))
                .text(format!(" AND {name} < "))
                .then(date(next))
                .text(")"),
            Range::Instants(start, end) => {
                Sql::all(vec![self.compare(column, ">=", start)?, self.compare(column, "<", end)?])
            }
        })
    }

    fn effective(&self, slice: &AsOfSlice) -> Result<Sql> {
        let from = self.reached(&slice.from, "<=", slice)?;
        let Some(to) = &slice.to else { return Ok(from) };
        let open = Sql::new(format!("t.{} IS NULL", quoted(to)));
        Ok(Sql::all(vec![from, Sql::any(vec![open, self.reached(to, ">", slice)?])]))
    }

    /// Rows of equal rank stay together: which of them would win is not for the storage system to choose.
    fn newest(&self, from: Sql, slice: &AsOfSlice) -> Result<Sql> {
        let entity = slice.entity.iter().map(|column| {
            self.layout.field(column)?;
            Ok(format!("t.{}", quoted(column)))
        });
        let entity = entity.collect::<Result<Vec<_>>>()?.join(", ");
        let by = if entity.is_empty() { String::new() } else { format!("PARTITION BY {entity} ") };
        Ok(Sql::new(format!(
            "SELECT {} FROM (SELECT t.*, rank() OVER ({by}ORDER BY t.{} DESC) AS reprocess_rank FROM ",
            self.layout.readable("t."),
            quoted(&slice.from)
        ))
        .then(from)
        .text(" AS t WHERE ")
        .then(self.effective(slice)?)
        .text(") AS t WHERE t.reprocess_rank = 1"))
    }

    fn reached(&self, column: &str, operator: &str, slice: &AsOfSlice) -> Result<Sql> {
        if self.is_instant(column)? {
            return self.compare(column, operator, slice.instant);
        }
        Ok(Sql::new(format!("t.{} {operator} ", quoted(column))).then(date(slice.date)))
    }

    fn compare(&self, column: &str, operator: &str, bound: DateTime<Utc>) -> Result<Sql> {
        let (_, store) = self.layout.column(column)?;
        Ok(Sql::new(format!("t.{} {operator} ", quoted(column))).then(instant(store.kind, bound)))
    }

    /// Whether a column holds instants, and not dates.
    fn is_instant(&self, column: &str) -> Result<bool> {
        match self.layout.field(column)?.data_type() {
            DataType::Timestamp(..) => Ok(true),
            DataType::Date32 => Ok(false),
            other => {
                Err(Error::invalid(format!("column `{column}` is a {other}, not a date or a timestamp")))
            }
        }
    }
}
