//! Amazon S3, and what speaks its protocol.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key};
use reprocess_core::{Error, ErrorKind, Result};

use super::settings::{Settings, is_true};

const KEY_ID: &[&str] = &["s3.access-key-id", "client.access-key-id"];
const SECRET: &[&str] = &["s3.secret-access-key", "client.secret-access-key"];
const TOKEN: &[&str] = &["s3.session-token", "client.session-token"];
const REGION: &[&str] = &["s3.region", "client.region"];

/// Options that `object_store` knows by name only.
const ENCRYPTION: &str = "aws_server_side_encryption";
const KMS_KEY: &str = "aws_sse_kms_key_id";
const CUSTOMER_KEY: &str = "aws_sse_customer_key_base64";

pub(super) fn open(bucket: &str, settings: &Settings) -> Result<Arc<dyn ObjectStore>> {
    let store = builder(bucket, settings)?.build().map_err(|e| settings.refused(e))?;
    Ok(Arc::new(store))
}

fn builder(bucket: &str, settings: &Settings) -> Result<AmazonS3Builder> {
    let own_key = settings.get(KEY_ID).is_some();
    if !own_key && settings.is_on(&["s3.remote-signing-enabled"]) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "the catalog wants to sign every request to its store",
        )
        .with_advice("let it give out credentials, or give some as `s3.access-key-id` and its like"));
    }
    let mut builder = from_environment(own_key).with_bucket_name(bucket);
    for (names, option) in [
        (KEY_ID, Key::AccessKeyId),
        (SECRET, Key::SecretAccessKey),
        (TOKEN, Key::Token),
        (REGION, Key::Region),
    ] {
        if let Some(value) = settings.get(names) {
            builder = builder.with_config(option, value);
        }
    }
    if settings.is_on(&["s3.allow-anonymous", "s3.anonymous"]) {
        builder = builder.with_skip_signature(true);
    }
    encrypted(addressed(builder, bucket, settings), settings)
}

/// What the environment says, as other clients of S3 read it. The session of another key is left out.
fn from_environment(own_key: bool) -> AmazonS3Builder {
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.to_str()?.strip_prefix("AWS_")?.to_ascii_lowercase();
        let option: Key = format!("aws_{name}").parse().ok()?;
        let of_key = matches!(option, Key::AccessKeyId | Key::SecretAccessKey | Key::Token);
        (!own_key || !of_key).then_some((option, value.to_str()?.to_owned()))
    });
    variables.fold(AmazonS3Builder::new(), |builder, (option, value)| builder.with_config(option, value))
}

/// Where requests go. A bucket is part of the path of a request, as every server knows it, unless it is said otherwise.
fn addressed(builder: AmazonS3Builder, bucket: &str, settings: &Settings) -> AmazonS3Builder {
    let in_host = settings.get(&["s3.path-style-access"]).is_some_and(|value| !is_true(value))
        || settings.is_on(&["s3.force-virtual-addressing"]);
    let builder = builder.with_virtual_hosted_style_request(in_host);
    let Some(endpoint) = settings.get(&["s3.endpoint"]) else { return builder };
    let endpoint = match endpoint.split_once("://") {
        Some((scheme, host)) if in_host => format!("{scheme}://{bucket}.{host}"),
        _ => endpoint.to_owned(),
    };
    let over_http = endpoint.starts_with("http://");
    builder.with_config(Key::S3Endpoint, endpoint).with_allow_http(over_http)
}

/// How the server encrypts what it keeps, in the words of Java and in those of PyIceberg.
fn encrypted(builder: AmazonS3Builder, settings: &Settings) -> Result<AmazonS3Builder> {
    let Some(said) = settings.get(&["s3.sse.type", "s3.server-side-encryption"]) else { return Ok(builder) };
    let (kind, key) = match said {
        "none" => return Ok(builder),
        "s3" | "AES256" => ("AES256", None),
        "kms" | "aws:kms" => ("aws:kms", Some(KMS_KEY)),
        "dsse-kms" | "aws:kms:dsse" => ("aws:kms:dsse", Some(KMS_KEY)),
        "custom" => ("sse-c", Some(CUSTOMER_KEY)),
        other => {
            return Err(Error::invalid("a way of encryption is not known")
                .with_context("s3.sse.type", other)
                .with_advice("it is one of none, s3, kms, dsse-kms and custom"));
        }
    };
    let key = key.zip(settings.get(&["s3.sse.key", "s3.sse-kms-key-id"]));
    let mut options = std::iter::once((ENCRYPTION, kind)).chain(key);
    options.try_fold(builder, |builder, (name, value)| {
        let option: Key = name.parse().map_err(|e: object_store::Error| settings.refused(e))?;
        Ok(builder.with_config(option, value))
    })
}

#[cfg(test)]
mod tests;
