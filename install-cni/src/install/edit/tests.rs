//! What comes out is compared as text: the point of this module is the bytes.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn ours() -> Value {
    json!({"cniVersion": "0.3.1", "name": "istio-cni", "type": "istio-cni", "ipam": {}, "exclude_namespaces": ["a"]})
}

#[track_caller]
fn there_and_back(text: &str) -> String {
    let edited = insert(text, &ours()).unwrap();
    assert_eq!(insert(&edited, &ours()).unwrap(), edited, "twice is once");
    assert_eq!(count(&edited), 1);
    assert_eq!(remove(&edited).unwrap(), text, "removal gives back the original");
    edited
}

#[test]
fn our_element_is_indented_like_its_neighbours_and_nothing_else_changes() {
    let text = "{\n\t\"name\": \"n\",\n\t\"plugins\": [\n\t\t{\n\t\t\t\"type\": \"bridge\",\n\t\t\t\"mtu\": 12345678901234567890.0\n\t\t}\n\t]\n}";
    assert_eq!(
        there_and_back(text),
        text.replace(
            "\n\t\t}\n",
            "\n\t\t},\n\t\t{\n\t\t\t\"name\": \"istio-cni\",\n\t\t\t\"type\": \"istio-cni\",\n\t\t\t\"ipam\": {},\n\t\t\t\
             \"exclude_namespaces\": [\n\t\t\t\t\"a\"\n\t\t\t]\n\t\t}\n"
        )
    );
}

#[test]
fn a_list_on_one_line_stays_on_one_line() {
    let text = r#"{"plugins": [{"type":"bridge"}, {"type":"portmap"}],"name":"n"}"#;
    assert_eq!(
        there_and_back(text),
        concat!(
            r#"{"plugins": [{"type":"bridge"}, {"type":"portmap"}, {"name":"istio-cni","type":"istio-cni","ipam":{},"#,
            r#""exclude_namespaces":["a"]}],"name":"n"}"#
        )
    );
}

#[test]
fn windows_line_ends_are_kept() {
    let edited = there_and_back("{\"plugins\": [\r\n    {\"type\": \"a\"}\r\n]}\r\n");
    assert_eq!(edited.matches('\n').count(), edited.matches("\r\n").count());
}

#[test]
fn odd_but_legal_texts_are_edited_too() {
    for text in [
        r#"{"plugins":[]}"#,
        "{\"plugins\":[ \n ]}",
        r#"{"plugins":[{"type":"a"}],"plugins":[{"type":"b"}]}"#,
        r#"{"p\u006cugins":[{"t\u0079pe":"a","x":"]},{\"type\":\"istio-cni\"}"}]}"#,
        "{\"plugins\":[{\"type\":\"a\"}\n ,\n\n   {\"type\":\"b\"}  \n ]  }  ",
        r#"{"plugins":[{"type":null},{"type":7},{}]}"#,
    ] {
        there_and_back(text);
    }
}

#[test]
fn a_node_with_four_of_our_elements_gets_one_and_it_is_last() {
    let text = r#"{"plugins":[{"type":"istio-cni"},{"type":"istio-cni","old":1},{"type":"bridge"},{"type":"istio-cni"},{"type":"portmap"},{"type":"istio-cni","name":"other"}]}"#;
    let edited = insert(text, &ours()).unwrap();
    let plugins = List::parse(&edited).unwrap().plugins().to_vec();
    let types: Vec<_> = plugins.iter().map(|plugin| plugin["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["bridge", "portmap", "istio-cni"]);
    assert_eq!(remove(&edited).unwrap(), r#"{"plugins":[{"type":"bridge"},{"type":"portmap"}]}"#);
}

#[test]
fn an_element_appended_behind_ours_comes_before_it_again() {
    let text = r#"{"plugins":[{"type":"a"},{"type":"istio-cni"},{"type":"bandwidth"}]}"#;
    let edited = insert(text, &ours()).unwrap();
    assert!(edited.starts_with(r#"{"plugins":[{"type":"a"},{"type":"bandwidth"},{"name":"istio-cni""#), "{edited}");
}

#[test]
fn another_order_of_keys_in_our_element_is_no_reason_to_write() {
    let text =
        r#"{"plugins":[{"type":"a"},{"ipam":{},"exclude_namespaces":["a"],"type":"istio-cni","name":"istio-cni"}]}"#;
    assert_eq!(insert(text, &ours()).unwrap(), text);
}

#[test]
fn what_is_not_a_list_is_refused() {
    for (text, error) in [
        ("[]", EditError::NotAnObject),
        ("null", EditError::NotAnObject),
        ("{}", EditError::NoPlugins),
        (r#"{"plugins":null}"#, EditError::NoPlugins),
        (r#"{"plugins":{}}"#, EditError::NoPlugins),
        (r#"{"plugins":["a"]}"#, EditError::NoPlugins),
        (r#"{"type":"bridge"}"#, EditError::SingleNetwork),
    ] {
        assert_eq!(insert(text, &ours()), Err(error), "{text}");
    }
    for text in ["", "{\"plugins\":[{\"type\":\"bri", "{\"plugins\":[]}}"] {
        assert!(matches!(insert(text, &ours()), Err(EditError::NotJson(_))), "{text}");
    }
    assert_eq!(insert(r#"{"plugins":[]}"#, &json!([])), Err(EditError::Element));
}

/// JSON values with awkward strings and numbers.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_filter("finite", |f| f.is_finite()).prop_map(Value::from),
        "[a-z\\]\\[{}\",:\\\\\u{e9}\n]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z\"]{0,4}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn plugin() -> impl Strategy<Value = Value> {
    let kind = prop_oneof![3 => Just("bridge".to_owned()), 1 => Just("istio-cni".to_owned()), 1 => "[a-z]{0,3}"];
    (kind, value()).prop_map(|(kind, extra)| json!({"extra": extra, "type": kind}))
}

/// A text of the value with white space strewn in wherever JSON allows it.
fn spaced(value: &Value, space: &str) -> String {
    match value {
        Value::Object(map) => {
            let members: Vec<_> = map
                .iter()
                .map(|(key, value)| {
                    format!("{space}{}{space}:{space}{}", Value::from(key.as_str()), spaced(value, space))
                })
                .collect();
            format!("{{{}{space}}}", members.join(&format!("{space},")))
        }
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| format!("{space}{}", spaced(item, space))).collect();
            format!("[{}{space}]", items.join(&format!("{space},")))
        }
        other => other.to_string(),
    }
}

proptest! {
    #[test]
    fn editing_keeps_the_meaning_and_removal_the_bytes(
        plugins in prop::collection::vec(plugin(), 0..5),
        before in value(),
        after in value(),
        space in prop_oneof![Just(""), Just(" "), Just("\n  "), Just("\r\n\t"), Just("\n\n")],
    ) {
        let object = json!({"before": before, "plugins": plugins, "after": after});
        let text = spaced(&object, space);
        // Not `object` itself: the parser rounds some numbers in the last place.
        let object: Value = serde_json::from_str(&text).unwrap();

        let edited = insert(&text, &ours()).unwrap();
        prop_assert_eq!(&insert(&edited, &ours()).unwrap(), &edited);
        let mut wanted = object.clone();
        let list = wanted["plugins"].as_array_mut().unwrap();
        list.retain(|plugin| !is_ours(plugin));
        list.push(list_element(&ours()).unwrap());
        prop_assert_eq!(serde_json::from_str::<Value>(&edited).unwrap(), wanted);

        let removed = remove(&edited).unwrap();
        prop_assert_eq!(&removed, &remove(&text).unwrap());
        if plugins.iter().all(|plugin| !is_ours(plugin)) {
            prop_assert_eq!(&removed, &text);
        }
    }
}
