//! Between the three shapes of results. Only [`super`] calls it.
//!
//! The old shape holds one address per family and no interfaces: what does not fit there is dropped, as the
//! specification's own library does. Everywhere else nothing is lost.

use std::net::IpAddr;

use serde_json::{Map, Value};

use super::ResultError;
use crate::version::Shape;

/// Key of the old shape, and the `version` of an address that goes there.
const FAMILIES: [(&str, &str); 2] = [("ip4", "4"), ("ip6", "6")];

/// Gives `result` another shape. The caller brings it into normal form.
pub(super) fn convert(
    mut result: Map<String, Value>,
    from: Shape,
    to: Shape,
) -> Result<Map<String, Value>, ResultError> {
    if from == Shape::PerFamily {
        lists_from_families(&mut result)?;
    }
    match to {
        Shape::PerFamily => families_from_lists(&mut result)?,
        Shape::List => {
            for address in objects_mut(&mut result, "ips")? {
                address.shift_remove("version");
            }
        }
        Shape::ListWithVersion => {}
    }
    Ok(result)
}

/// `"4"` or `"6"`, from the address itself.
pub(super) fn family(address: &Map<String, Value>) -> &'static str {
    family_of(text(address, "address"))
}

/// The objects of the list `key`; none when there is no such list.
pub(super) fn objects_mut<'a>(
    result: &'a mut Map<String, Value>,
    key: &'static str,
) -> Result<Vec<&'a mut Map<String, Value>>, ResultError> {
    match result.get_mut(key) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => items
            .iter_mut()
            .map(|item| item.as_object_mut().ok_or(ResultError::Type { key, wanted: "a list of objects" }))
            .collect(),
        Some(_) => Err(ResultError::Type { key, wanted: "a list" }),
    }
}

fn text<'a>(object: &'a Map<String, Value>, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn family_of(range: &str) -> &'static str {
    let address = range.split('/').next().unwrap_or_default();
    match address.parse::<IpAddr>().map(|address| address.to_canonical()) {
        Ok(IpAddr::V4(_)) => "4",
        Ok(IpAddr::V6(_)) => "6",
        Err(_) if address.contains(':') => "6",
        Err(_) => "4",
    }
}

fn lists_from_families(result: &mut Map<String, Value>) -> Result<(), ResultError> {
    let (mut ips, mut routes) = (Vec::new(), Vec::new());
    for (key, family) in FAMILIES {
        let mut old = match result.shift_remove(key) {
            None | Some(Value::Null) => continue,
            Some(Value::Object(old)) => old,
            Some(_) => return Err(ResultError::Type { key, wanted: "an object" }),
        };
        let gateway = old.get("gateway").cloned();
        for route in objects_mut(&mut old, "routes")? {
            // In the old shape a route without a gateway goes through the address's own.
            if let (false, Some(gateway)) = (route.contains_key("gw"), &gateway) {
                route.insert("gw".to_owned(), gateway.clone());
            }
            routes.push(Value::Object(std::mem::take(route)));
        }
        old.shift_remove("routes");
        let mut address = Map::new();
        address.insert("version".to_owned(), family.into());
        address.insert("address".to_owned(), old.shift_remove("ip").unwrap_or_default());
        address.extend(old);
        ips.push(Value::Object(address));
    }
    result.insert("ips".to_owned(), ips.into());
    result.insert("routes".to_owned(), routes.into());
    Ok(())
}

fn families_from_lists(result: &mut Map<String, Value>) -> Result<(), ResultError> {
    let mut found: [Option<Map<String, Value>>; 2] = [None, None];
    for address in objects_mut(result, "ips")? {
        let own = family(address);
        for (slot, (_, family)) in found.iter_mut().zip(FAMILIES) {
            if own == family && slot.is_none() {
                let mut old = Map::new();
                old.insert("ip".to_owned(), address.get("address").cloned().unwrap_or_default());
                if let Some(gateway) = address.get("gateway") {
                    old.insert("gateway".to_owned(), gateway.clone());
                }
                *slot = Some(old);
            }
        }
    }
    let mut routes: [Vec<Value>; 2] = [Vec::new(), Vec::new()];
    for route in objects_mut(result, "routes")? {
        let own = family_of(text(route, "dst"));
        route.retain(|key, _| key == "dst" || key == "gw");
        for (list, (_, family)) in routes.iter_mut().zip(FAMILIES) {
            if own == family {
                list.push(Value::Object(std::mem::take(route)));
                break;
            }
        }
    }
    for key in super::LISTS {
        result.shift_remove(key);
    }
    for ((slot, routes), (key, _)) in found.into_iter().zip(routes).zip(FAMILIES) {
        if let Some(mut old) = slot {
            if !routes.is_empty() {
                old.insert("routes".to_owned(), routes.into());
            }
            result.insert(key.to_owned(), old.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::result::unchanged;
    use crate::version::Version;

    fn converted(to: Version, result: &serde_json::Value) -> serde_json::Value {
        serde_json::from_str(&unchanged(to, Some(&result.to_string())).unwrap()).unwrap()
    }

    #[test]
    fn an_old_result_gets_lists() {
        let old = json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.1.0.5/16", "gateway": "10.1.0.1", "vendor": 1,
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.1.0.9"}]},
            "ip6": {"ip": "fd00::5/64"}, "more": true});
        assert_eq!(
            converted(Version::V1_0_0, &old),
            json!({"cniVersion": "1.0.0", "more": true,
                "ips": [{"address": "10.1.0.5/16", "gateway": "10.1.0.1", "vendor": 1}, {"address": "fd00::5/64"}],
                "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}, {"dst": "10.9.0.0/16", "gw": "10.1.0.9"}]})
        );
        let middle = converted(Version::V0_3_1, &old);
        assert_eq!((&middle["ips"][1]["version"], &middle["dns"]), (&json!("6"), &json!({})));
    }

    #[test]
    fn a_new_result_is_cut_to_one_address_per_family() {
        let new = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth0"}], "more": true,
            "ips": [{"address": "fd00::5/64"}, {"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 0},
                    {"address": "10.1.0.6/16"}],
            "routes": [{"dst": "0.0.0.0/0", "mtu": 1400}, {"dst": "::/0", "gw": "fd00::1"}]});
        assert_eq!(
            converted(Version::V0_2_0, &new),
            json!({"cniVersion": "0.2.0", "dns": {}, "more": true,
                "ip4": {"ip": "10.1.0.5/16", "gateway": "10.1.0.1", "routes": [{"dst": "0.0.0.0/0"}]},
                "ip6": {"ip": "fd00::5/64", "routes": [{"dst": "::/0", "gw": "fd00::1"}]}})
        );
    }

    #[test]
    fn the_address_version_comes_and_goes_with_1_0_0() {
        let new = json!({"cniVersion": "1.0.0", "ips": [{"address": "::ffff:10.1.0.5/112", "interface": 0}]});
        let old = json!({"cniVersion": "0.4.0", "dns": {},
            "ips": [{"version": "4", "address": "::ffff:10.1.0.5/112", "interface": 0}]});
        assert_eq!(converted(Version::V0_4_0, &new), old);
        assert_eq!(converted(Version::V1_1_0, &old)["ips"], new["ips"]);
    }
}
