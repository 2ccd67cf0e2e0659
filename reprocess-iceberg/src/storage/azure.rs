//! Azure Blob Storage.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::azure::{AzureConfigKey as Key, MicrosoftAzureBuilder};
use reprocess_core::Result;

use super::settings::Settings;

/// What a connection string says, see
/// <https://learn.microsoft.com/azure/storage/common/storage-configure-connection-string>.
const OF_CONNECTION: [(&str, Key); 4] = [
    ("AccountName", Key::AccountName),
    ("AccountKey", Key::AccessKey),
    ("SharedAccessSignature", Key::SasKey),
    ("BlobEndpoint", Key::Endpoint),
];

/// `container` names its account, too, where the location does: `container@account.dfs.core.windows.net`.
pub(super) fn open(container: &str, settings: &Settings) -> Result<Arc<dyn ObjectStore>> {
    let store = builder(container, settings).build().map_err(|e| settings.refused(e))?;
    Ok(Arc::new(store))
}

fn builder(container: &str, settings: &Settings) -> MicrosoftAzureBuilder {
    let (container, host) = container.split_once('@').unwrap_or((container, ""));
    let (account, domain) = host.split_once('.').unwrap_or((host, ""));
    let said = said(host, account, settings);
    let own = said.iter().any(|(key, _)| !matches!(key, Key::AccountName | Key::Endpoint));
    let mut builder = if own { MicrosoftAzureBuilder::new() } else { MicrosoftAzureBuilder::from_env() };
    builder = builder.with_container_name(container);
    for (key, value) in said {
        if key == Key::Endpoint {
            builder = builder.with_allow_http(value.starts_with("http://"));
        }
        builder = builder.with_config(key, value);
    }
    if !account.is_empty() {
        builder = builder.with_account(account);
    }
    match domain.strip_prefix("dfs.").or(domain.strip_prefix("blob.")) {
        None | Some("core.windows.net") => builder,
        Some("fabric.microsoft.com") => builder.with_use_fabric_endpoint(true),
        Some(other) => builder.with_endpoint(format!("https://{account}.blob.{other}")),
    }
}

/// The settings as options of the store; later ones win.
fn said(host: &str, account: &str, settings: &Settings) -> Vec<(Key, String)> {
    let of = |name: &str, place: &str| format!("{name}.{place}");
    let connection = settings.get(&[
        &of("adls.connection-string", host),
        &of("adls.connection-string", account),
        "adls.connection-string",
    ]);
    let parts = connection.unwrap_or_default().split(';').filter_map(|part| part.split_once('='));
    let parts = parts.filter_map(|(name, value)| {
        let (_, key) = OF_CONNECTION.iter().find(|(known, _)| known.eq_ignore_ascii_case(name.trim()))?;
        Some((*key, value.trim().to_owned()))
    });
    let sas = [&*of("adls.sas-token", host), &*of("adls.sas-token", account), "adls.sas-token"];
    let names: [(Key, &[&str]); 8] = [
        (Key::AccountName, &["adls.account-name", "adls.auth.shared-key.account.name"]),
        (Key::AccessKey, &["adls.account-key", "adls.auth.shared-key.account.key"]),
        (Key::SasKey, &sas),
        (Key::Token, &["adls.token"]),
        (Key::AuthorityId, &["adls.tenant-id"]),
        (Key::ClientId, &["adls.client-id"]),
        (Key::ClientSecret, &["adls.client-secret"]),
        (Key::AuthorityHost, &["adls.authority-host"]),
    ];
    let named = names.iter().filter_map(|(key, names)| Some((*key, settings.get(names)?.to_owned())));
    parts.chain(named).collect()
}

#[cfg(test)]
mod tests {
    use reprocess_core::ErrorKind;

    use super::*;

    const HOST: &str = "tables@lake.dfs.core.windows.net";

    fn check(container: &str, pairs: &[(&str, &str)], said: &[(Key, &str)]) {
        let settings = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let builder = builder(container, &Settings::new(&settings));
        for (key, value) in said {
            assert_eq!(builder.get_config_value(key).as_deref(), Some(*value), "{key:?}");
        }
    }

    #[test]
    fn a_location_names_container_and_account() {
        check(HOST, &[], &[(Key::ContainerName, "tables"), (Key::AccountName, "lake")]);
        let elsewhere = "tables@lake.dfs.core.chinacloudapi.cn";
        check(elsewhere, &[], &[(Key::Endpoint, "https://lake.blob.core.chinacloudapi.cn")]);
        let fabric = "space@onelake.dfs.fabric.microsoft.com";
        check(fabric, &[], &[(Key::AccountName, "onelake"), (Key::UseFabricEndpoint, "true")]);
        check("tables", &[("adls.account-name", "lake")], &[(Key::AccountName, "lake")]);
    }

    #[test]
    fn credentials_come_under_the_names_of_iceberg() {
        let vended = "adls.sas-token.lake.dfs.core.windows.net";
        check(HOST, &[("adls.sas-token", "sig=a"), (vended, "sig=b")], &[(Key::SasKey, "sig=b")]);
        check(HOST, &[("adls.sas-token.lake", "sig=c")], &[(Key::SasKey, "sig=c")]);
        check(HOST, &[("adls.account-key", "a2V5")], &[(Key::AccessKey, "a2V5")]);
        check(
            HOST,
            &[("adls.tenant-id", "t"), ("adls.client-id", "c"), ("adls.client-secret", "s")],
            &[(Key::AuthorityId, "t"), (Key::ClientId, "c"), (Key::ClientSecret, "s")],
        );
    }

    #[test]
    fn a_connection_string_is_taken_apart() {
        let connection = "DefaultEndpointsProtocol=http;AccountName=dev;AccountKey=a2V5PT0=;\
                          BlobEndpoint=http://127.0.0.1:10000/dev;";
        check(
            "tables",
            &[("adls.connection-string", connection)],
            &[
                (Key::AccountName, "dev"),
                (Key::AccessKey, "a2V5PT0="),
                (Key::Endpoint, "http://127.0.0.1:10000/dev"),
            ],
        );
    }

    #[test]
    fn a_key_that_is_none_is_refused_without_showing_it() {
        let settings = [("adls.account-key".to_owned(), "hunter2!".to_owned())].into();
        let error = open(HOST, &Settings::new(&settings)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
