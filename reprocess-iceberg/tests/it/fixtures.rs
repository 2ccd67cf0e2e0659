//! Tables as other programs make them: of any format, by any spec.

use std::str::FromStr;

use iceberg::MetadataLocation;
use iceberg::io::FileIO;
use iceberg::spec::{
    FormatVersion, NestedField, PrimitiveType, Schema, SortOrder, TableMetadataBuilder, Transform, Type,
    UnboundPartitionSpec,
};
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::Partitioning;
use reprocess_iceberg::{IcebergTable, iceberg};
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tempfile::TempDir;

use crate::raw::Raw;
use crate::support::Place;

/// A table that others made.
pub(crate) struct Made {
    folder: TempDir,
    pub(crate) raw: Raw,
    pub(crate) table: IcebergTable,
}

impl Made {
    /// Columns `at` (an instant), `day`, `country`, `id` and `amount`, divided by transforms of columns.
    pub(crate) async fn new(
        version: FormatVersion,
        fields: &[(&str, Transform)],
        dimensions: Partitioning,
    ) -> Self {
        let folder = TempDir::new().unwrap();
        let place = Place::in_folder(folder.path());
        place.catalog().await;
        let spec = fields.iter().fold(UnboundPartitionSpec::builder().with_spec_id(0), |spec, field| {
            let source = columns().field_by_name(field.0).unwrap().id;
            let name =
                if field.1 == Transform::Identity { field.0.to_owned() } else { format!("{}_part", field.0) };
            spec.add_partition_field(source, name, field.1).unwrap()
        });
        let location = format!("{}/shop/made", place.warehouse);
        let builder = TableMetadataBuilder::new(
            columns(),
            spec.build(),
            SortOrder::unsorted_order(),
            location.clone(),
            version,
            [].into(),
        );
        let metadata = builder.unwrap().build().unwrap().metadata;
        let place_of = MetadataLocation::new_with_metadata(&location, &metadata).to_string();
        let io = FileIO::new_with_fs();
        metadata.write_to(&io, &MetadataLocation::from_str(&place_of).unwrap()).await.unwrap();
        let options = SqliteConnectOptions::new().filename(&place.catalog);
        let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
        sqlx::query(
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location)
             VALUES ('test', 'shop', 'made', ?)",
        )
        .bind(&place_of)
        .execute(&mut connection)
        .await
        .unwrap();
        let table = place.open_as(TableSpec::new("made", dimensions)).await;
        Self { raw: Raw::in_file(&place.catalog, "shop.made"), folder, table }
    }

    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }
}

fn columns() -> Schema {
    let field = |id, name: &str, of| NestedField::optional(id, name, Type::Primitive(of)).into();
    Schema::builder()
        .with_fields([
            field(1, "at", PrimitiveType::Timestamptz),
            field(2, "day", PrimitiveType::Date),
            field(3, "country", PrimitiveType::String),
            field(4, "id", PrimitiveType::Long),
            field(5, "amount", PrimitiveType::Long),
        ])
        .build()
        .unwrap()
}
