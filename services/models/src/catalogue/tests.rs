use expect_test::expect;
use secrecy::ExposeSecret as _;

use super::*;

/// What is wrong with the built-in catalogue once `from` is `to`.
fn wrong(from: &str, to: &str) -> String {
    assert!(BUILT_IN.contains(from), "{from}");
    wrong_text(&BUILT_IN.replacen(from, to, 1))
}

fn wrong_text(text: &str) -> String {
    text.parse::<Catalogue>().unwrap_err().to_string()
}

#[test]
fn the_built_in_catalogue_can_be_read() {
    let catalogue = Catalogue::built_in().unwrap();
    let offer = catalogue.everybody();
    assert_eq!(offer.find("scripted"), offer.find("scripted/demo"));
    assert_eq!(offer.find("scripted/none"), None);
    assert_eq!(offer.find("scripted/"), None);
}

#[test]
fn a_mistake_is_told_with_its_line_and_its_field() {
    let mistakes = [
        ("\"small\"", "\"demo\""),
        ("64000", "128000"),
        ("64000", "\"many\""),
        ("\"output_tokens\": 2000,", ""),
        ("\"tier\": \"cheap\"", "\"tire\": \"cheap\""),
        ("\"currency\": \"USD\"", "\"currency\": \"dollars\""),
        ("1250000", "-1"),
        ("\"provider\": \"scripted\"", "\"provider\": \"nobody\""),
        ("[\"scripted\"]", "[\"a name\"]"),
        ("\"kind\": \"scripted\"", "\"kind\": \"scripted\", \"base_url\": \"http://x\""),
        ("\"kind\": \"scripted\"", "\"kind\": \"gemini\""),
        ("\"kind\": \"scripted\"", "\"kind\": \"anthropic\", \"base_url\": \"https://key@host\""),
        (
            "\"kind\": \"scripted\"",
            "\"kind\": \"anthropic\", \"base_url\": \"https://host\", \"credential\": {\"env\": \"NO_SUCH_VARIABLE\"}",
        ),
        (
            "\"kind\": \"scripted\"",
            "\"kind\": \"anthropic\", \"base_url\": \"https://host\", \"headers\": {\"X-Api-Key\": \"secret\"}",
        ),
        ("\"kind\": \"scripted\"", "\"kind\": \"scripted\", \"idle_timeout_ms\": 0"),
        ("\"models\"", "\"tenants\": {\"acme\": {\"deny\": [\"demo\"]}}, \"models\""),
        ("\"models\"", "\"tenants\": {\"acme\": {\"prices\": {\"x/y\": 1}}}, \"models\""),
        ("}", ""),
    ];
    let mut told = String::new();
    for (from, to) in mistakes {
        told += &format!("{}\n", wrong(from, to));
    }
    expect![[r#"
        line 24, models[1].model: two models are called scripted/demo
        line 12, models[0].output_tokens: must be at least 1 and less than context_tokens
        line 12, models[0].output_tokens: invalid type: string "many", expected i32
        line 36, models[1].output_tokens: missing field `output_tokens`
        line 25, models[1].tire: unknown field `tire`, expected one of `provider`, `model`, `aliases`, `tier`, `context_tokens`, `output_tokens`, `capabilities`, `regions`, `price`, `tokenizer`, `thinking`
        line 15, models[0].price.currency: must be three capital letters
        line 19, models[0].price.cache_write_micros: must be from 0 to 4294967295
        line 7, models[0].provider: no provider is called nobody
        line 9, models[0].aliases[0]: must be 1 to 100 letters, digits and signs like - . _ : @ /
        line 3, providers[0].base_url: the scripted provider has no address
        line 3, providers[0].base_url: relative URL without a base
        line 3, providers[0].base_url: must not hold a credential: refer to one
        line 3, providers[0].credential: the variable NO_SUCH_VARIABLE is not set
        line 3, providers[0].headers.X-Api-Key: is a credential: refer to it in credential instead
        line 3, providers[0].idle_timeout_ms: must be from 1 to 900000
        line 5, tenants.acme.deny[0]: is neither a model's provider/model nor ends with *
        line 5, tenants.acme.prices.x/y: invalid type: integer `1`, expected struct Price
        line 4, providers[0]: expected `,` or `}`
    "#]].assert_eq(&told);
}

#[test]
fn a_text_that_is_no_catalogue_is_refused_in_peace() {
    for text in
        ["", "{", "[]", "{\"models\": [", "{\"models\": {\"\\\"\": 1}}", "nul", &"[".repeat(10_000)]
    {
        assert!(wrong_text(text).starts_with("line "), "{text}");
    }
}

#[test]
fn every_kind_of_token_has_its_price() {
    let catalogue = Catalogue::built_in().unwrap();
    let price = &catalogue.everybody().find("scripted/demo").unwrap().price;
    let usage = Usage { input: 1000, output: 100, reasoning: 50, cache_read: 500, cache_write: 10 };
    assert_eq!(price.cost_micros(&usage), 1000 + 400 + 50 + 13);
    // All of the input may be kept.
    assert_eq!(price.worst_micros(1000, 100), 1250 + 400);
    let price = Price { cache_write_micros: 0, ..price.clone() };
    assert_eq!(price.worst_micros(1000, 100), 1000 + 400);
}

#[test]
fn a_tenant_has_its_own_prices_and_everybody_else_the_stars() {
    let tenants = r#""tenants": {
        "acme": {"prices": {"scripted/demo": {"currency": "EUR", "input_micros": 1,
            "output_micros": 2, "cache_read_micros": 3, "cache_write_micros": 4}}},
        "*": {"deny": ["scripted/s*"]}
    }, "models""#;
    let catalogue: Catalogue = BUILT_IN.replacen("\"models\"", tenants, 1).parse().unwrap();
    let price = |tenant: &str| catalogue.of(tenant).find("scripted").unwrap().price.input_micros;
    assert_eq!((price("acme"), price("other")), (1, 1_000_000));
    let may = |tenant: &str| {
        let offer = catalogue.of(tenant);
        let models = offer.models.iter().filter(|model| offer.policy.permits(model));
        models.map(Model::name).collect::<Vec<_>>()
    };
    assert_eq!(may("acme"), ["scripted/demo", "scripted/small"]);
    assert_eq!(may("other"), ["scripted/demo"]);
}

#[test]
fn a_credential_is_referred_to_and_never_shown() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    std::fs::write(&path, "sk-very-secret\n").unwrap();
    let path = serde_json::to_string(&path).unwrap();
    let mount = serde_json::to_string(directory.path()).unwrap();
    for reference in [
        format!("{{\"file\": {path}}}"),
        format!("{{\"secret_mount\": {{\"directory\": {mount}, \"key\": \"key\"}}}}"),
    ] {
        let provider = format!(
            "\"kind\": \"anthropic\", \"base_url\": \"https://host/v1/\", \"credential\": {reference}"
        );
        let text = BUILT_IN.replacen("\"kind\": \"scripted\"", &provider, 1);
        let catalogue: Catalogue = text.parse().unwrap();
        let provider = &catalogue.providers[0];
        assert_eq!(provider.credential.as_ref().unwrap().expose_secret(), "sk-very-secret");
        assert_eq!(provider.base_url, "https://host/v1");
        assert!(!format!("{catalogue:?}").contains("very-secret"));
    }
    std::fs::write(directory.path().join("key"), "two words\n").unwrap();
    let provider = format!(
        "\"kind\": \"anthropic\", \"base_url\": \"https://host\", \"credential\": {{\"file\": {path}}}"
    );
    expect!["line 3, providers[0].credential: what it refers to is not a credential: it has spaces or controls"]
        .assert_eq(&wrong("\"kind\": \"scripted\"", &provider));
}
