//! How a table wants its files written, by its properties.

use std::collections::BTreeMap;
use std::str::FromStr;

use iceberg::spec::TableMetadata;
use parquet_58::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use parquet_58::errors::ParquetError;
use parquet_58::file::properties::{WriterProperties, WriterPropertiesBuilder};
use parquet_58::schema::types::ColumnPath;
use reprocess_core::{Error, ErrorKind, Result};

/// A row group in memory is written once it has so many bytes, so that a partition that is open costs no more.
const ROW_GROUP_BYTES: usize = 12 << 20;
const PAGE_BYTES: usize = 1 << 20;
const PAGE_ROWS: usize = 20_000;
const DICTIONARY_BYTES: usize = 2 << 20;
/// Level of zstd where the table names none.
const ZSTD_LEVEL: i32 = 3;
/// Share of values that a bloom filter may take for others, where the table names none.
const BLOOM_MISTAKES: f64 = 0.01;
const BLOOM_COLUMN: &str = "write.parquet.bloom-filter-enabled.column.";
const BLOOM_MISTAKES_OF_COLUMN: &str = "write.parquet.bloom-filter-fpp.column.";

/// The properties of a table.
#[derive(Clone, Debug, Default)]
pub(super) struct Properties(BTreeMap<String, String>);

impl From<&TableMetadata> for Properties {
    fn from(metadata: &TableMetadata) -> Self {
        let properties = metadata.properties().iter();
        Self(properties.map(|(name, value)| (name.clone(), value.clone())).collect())
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Properties {
    fn from(properties: [(&str, &str); N]) -> Self {
        Self(properties.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }
}

impl Properties {
    /// What the table says, where it says something.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// The number that the table says. Refuses another text.
    pub(super) fn number<T: FromStr>(&self, name: &'static str) -> Result<Option<T>> {
        let number = |text: &str| text.parse().map_err(|_| unusable(name, text));
        self.get(name).map(number).transpose()
    }

    /// Properties whose names begin so, by the rest of their names.
    fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0.iter().filter_map(move |(name, value)| Some((name.strip_prefix(prefix)?, value.trim())))
    }

    /// The folder of data files, without a slash at its end.
    pub(super) fn data_root(&self, location: &str) -> String {
        let named = ["write.data.path", "write.folder-storage.path", "write.object-storage.path"];
        let named = named.into_iter().find_map(|name| self.get(name)).map(str::to_owned);
        let root = named.unwrap_or_else(|| format!("{}/data", location.trim_end_matches('/')));
        root.trim_end_matches('/').to_owned()
    }

    /// What the files of the table look like inside.
    pub(super) fn parquet(&self) -> Result<WriterProperties> {
        let row_group = self.number("write.parquet.row-group-size-bytes")?.unwrap_or(ROW_GROUP_BYTES);
        let page = self.number("write.parquet.page-size-bytes")?.unwrap_or(PAGE_BYTES);
        let rows = self.number("write.parquet.page-row-limit")?.unwrap_or(PAGE_ROWS);
        let dictionary = self.number("write.parquet.dict-size-bytes")?.unwrap_or(DICTIONARY_BYTES);
        let builder = WriterProperties::builder()
            .set_compression(self.compression()?)
            .set_max_row_group_bytes(Some(row_group.clamp(1, ROW_GROUP_BYTES)))
            .set_data_page_size_limit(page.max(1))
            .set_data_page_row_count_limit(rows.max(1))
            .set_dictionary_page_size_limit(dictionary.clamp(1, ROW_GROUP_BYTES));
        Ok(self.bloom_filters(builder)?.build())
    }

    fn compression(&self) -> Result<Compression> {
        const CODEC: &str = "write.parquet.compression-codec";
        const LEVEL: &str = "write.parquet.compression-level";
        let refused = |e: ParquetError| unusable(LEVEL, self.get(LEVEL).unwrap_or_default()).with_source(e);
        let codec = self.get(CODEC).unwrap_or("zstd").to_ascii_lowercase();
        Ok(match codec.as_str() {
            "zstd" => {
                let level = self.number(LEVEL)?.unwrap_or(ZSTD_LEVEL);
                Compression::ZSTD(ZstdLevel::try_new(level).map_err(refused)?)
            }
            "gzip" => {
                let level = self.number(LEVEL)?.map_or_else(|| Ok(GzipLevel::default()), GzipLevel::try_new);
                Compression::GZIP(level.map_err(refused)?)
            }
            "brotli" => {
                let level =
                    self.number(LEVEL)?.map_or_else(|| Ok(BrotliLevel::default()), BrotliLevel::try_new);
                Compression::BROTLI(level.map_err(refused)?)
            }
            "snappy" => Compression::SNAPPY,
            "lz4" | "lz4_raw" => Compression::LZ4_RAW,
            "uncompressed" | "none" => Compression::UNCOMPRESSED,
            _ => return Err(unusable(CODEC, &codec)),
        })
    }

    fn bloom_filters(&self, mut builder: WriterPropertiesBuilder) -> Result<WriterPropertiesBuilder> {
        for (column, wanted) in self.under(BLOOM_COLUMN) {
            if !wanted.eq_ignore_ascii_case("true") {
                continue;
            }
            let said = self.get(&format!("{BLOOM_MISTAKES_OF_COLUMN}{column}"));
            let mistakes = said.map_or(Ok(BLOOM_MISTAKES), |text| {
                let share = text.parse().ok().filter(|share| 0.0 < *share && *share < 1.0);
                share.ok_or_else(|| unusable(BLOOM_MISTAKES_OF_COLUMN, text).with_context("column", column))
            });
            let path = ColumnPath::new(column.split('.').map(str::to_owned).collect());
            builder = builder
                .set_column_bloom_filter_enabled(path.clone(), true)
                .set_column_bloom_filter_fpp(path, mistakes?);
        }
        Ok(builder)
    }
}

fn unusable(name: &str, value: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("the table's property `{name}` is `{value}`"))
        .with_advice("set it to what Iceberg's documentation says, or remove it from the table")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column() -> ColumnPath {
        ColumnPath::from("note")
    }

    #[test]
    fn a_table_that_says_nothing_gets_zstd_and_row_groups_that_fit_into_memory() {
        let found = Properties::default().parquet().unwrap();
        assert_eq!(found.compression(&column()), Compression::ZSTD(ZstdLevel::try_new(3).unwrap()));
        assert_eq!(found.max_row_group_bytes(), Some(12 << 20));
        assert_eq!(found.data_page_size_limit(), 1 << 20);
        assert_eq!(found.dictionary_page_size_limit(), 2 << 20);
        assert!(found.bloom_filter_properties(&column()).is_none());
    }

    #[test]
    fn a_table_has_its_codec_level_sizes_and_filters() {
        let asked = Properties::from([
            ("write.parquet.compression-codec", "GZIP"),
            ("write.parquet.compression-level", "9"),
            ("write.parquet.row-group-size-bytes", "1048576"),
            ("write.parquet.page-size-bytes", "65536"),
            ("write.parquet.page-row-limit", "100"),
            ("write.parquet.dict-size-bytes", "1024"),
            ("write.parquet.bloom-filter-enabled.column.note", "true"),
            ("write.parquet.bloom-filter-enabled.column.other", "false"),
            ("write.parquet.bloom-filter-fpp.column.note", "0.05"),
        ]);
        let found = asked.parquet().unwrap();
        assert_eq!(found.compression(&column()), Compression::GZIP(GzipLevel::try_new(9).unwrap()));
        assert_eq!(found.max_row_group_bytes(), Some(1 << 20));
        assert_eq!(found.data_page_size_limit(), 65_536);
        assert_eq!(found.data_page_row_count_limit(), 100);
        assert_eq!(found.dictionary_page_size_limit(), 1_024);
        assert!((found.bloom_filter_properties(&column()).unwrap().fpp - 0.05).abs() < 1e-9);
        assert!(found.bloom_filter_properties(&ColumnPath::from("other")).is_none());
    }

    #[test]
    fn row_groups_never_take_more_memory_than_a_partition_may() {
        let asked = Properties::from([("write.parquet.row-group-size-bytes", "134217728")]);
        assert_eq!(asked.parquet().unwrap().max_row_group_bytes(), Some(12 << 20));
    }

    #[test]
    fn what_a_table_asks_and_nobody_knows_is_refused_by_name() {
        for (name, value) in [
            ("write.parquet.compression-codec", "lzo"),
            ("write.parquet.compression-level", "400"),
            ("write.parquet.compression-level", "high"),
            ("write.parquet.page-size-bytes", "1 MB"),
        ] {
            let error = Properties::from([(name, value)]).parquet().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(name) && error.to_string().contains(value), "{error}");
        }
    }

    #[test]
    fn data_files_go_where_the_table_says_or_into_its_folder() {
        let root = |asked: Properties| asked.data_root("s3://shop/orders/");
        assert_eq!(root(Properties::default()), "s3://shop/orders/data");
        assert_eq!(root(Properties::from([("write.data.path", "s3://fast/orders//")])), "s3://fast/orders");
    }
}
