//! What laws need to be tried.

use super::fixture::Offer;

pub(super) fn nothing(_: &Offer) -> bool {
    true
}

pub(super) fn merge(offer: &Offer) -> bool {
    offer.capabilities.merge
}

pub(super) fn dynamic(offer: &Offer) -> bool {
    offer.capabilities.replace_dynamic
}

pub(super) fn shadow(offer: &Offer) -> bool {
    offer.capabilities.shadow
}

pub(super) fn strangers(offer: &Offer) -> bool {
    offer.hooks.strangers
}

pub(super) fn ledger(offer: &Offer) -> bool {
    offer.hooks.ledger
}

pub(super) fn merge_shadow(offer: &Offer) -> bool {
    merge(offer) && shadow(offer)
}

pub(super) fn restore(offer: &Offer) -> bool {
    offer.capabilities.restore
}

pub(super) fn merge_restore(offer: &Offer) -> bool {
    merge(offer) && restore(offer)
}

pub(super) fn columns(offer: &Offer) -> bool {
    offer.capabilities.schema_change
}

pub(super) fn columns_restore(offer: &Offer) -> bool {
    columns(offer) && restore(offer)
}

pub(super) fn expiry(offer: &Offer) -> bool {
    offer.hooks.expiry
}
