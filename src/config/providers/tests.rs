use super::*;

fn default_model(environment: &Environment, yaml: &str) -> String {
    let file: UserFile = serde_saphyr::from_str(yaml).unwrap();
    find(environment, &file, None, &ProviderLimits::default()).unwrap().catalog.default_model().to_string()
}

#[test]
fn default_model_belongs_to_first_provider_with_key() {
    let environment = Environment::of(&[("GEMINI_API_KEY", "g")], &[]);
    assert_eq!(default_model(&Environment::default(), "{}"), "offline");
    assert_eq!(default_model(&environment, "{}"), "gemini/gemini-4-hydrogen");
    assert_eq!(
        default_model(&environment, "providers: {anthropic: {key_command: pass}}"),
        "anthropic/claude-opus-5-5"
    );
    assert_eq!(default_model(&environment, "model: ollama/x"), "ollama/x");
    assert_eq!(default_model(&environment, "model: ollama"), "ollama/qwen3-coder");
    for host in ["127.0.0.1", "0.0.0.0", "http://127.0.0.1:11434"] {
        let ollama = Environment::of(&[], &[("OLLAMA_HOST", host)]);
        assert_eq!(default_model(&ollama, "{}"), "ollama/qwen3-coder");
    }
    let own_address = Environment::of(&[], &[("ANTHROPIC_BASE_URL", "https://api.anthropic.com")]);
    assert_eq!(default_model(&own_address, "{}"), "offline", "that provider needs a key");
    let openai = Environment::of(&[("OPENAI_API_KEY", "o")], &[]);
    assert_eq!(default_model(&openai, "{}"), "openai-responses/gpt-6.2-sol");
}

#[test]
fn small_model_is_checked_like_the_model() {
    let small = |environment: &Environment, yaml: &str| {
        let file: UserFile = serde_saphyr::from_str(yaml).unwrap();
        let found = find(environment, &file, None, &ProviderLimits::default())
            .map(|remote| remote.catalog.small_model().cloned());
        found.map(|model| model.map(|model| model.to_string())).map_err(|error| format!("{error:#}"))
    };
    let (none, mut environment) = (Environment::default(), Environment::default());
    environment.small_model = Some("ollama/x".into());
    assert_eq!(small(&none, "{}"), Ok(None));
    assert_eq!(
        small(&none, "small_model: anthropic/claude-haiku-5-5"),
        Ok(Some("anthropic/claude-haiku-5-5".into()))
    );
    assert_eq!(small(&none, "small_model: ollama"), Ok(Some("ollama/qwen3-coder".into())));
    assert_eq!(small(&environment, "small_model: gemini/y"), Ok(Some("ollama/x".into())));
    let error = small(&none, "small_model: gpt").unwrap_err();
    assert!(error.starts_with("small_model: unknown model \"gpt\": it is `offline`"), "{error}");
}

#[test]
fn unreachable_servers_name_the_source_of_their_address() {
    let hint = |environment: &Environment, file: &UserFile, id: &str| {
        let remote = find(environment, file, None, &ProviderLimits::default()).unwrap();
        remote.endpoints[id].unreachable_hint.clone()
    };
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.yaml");
    std::fs::write(&config, "providers: {openai: {base_url: 'http://127.0.0.1:1'}}").unwrap();
    let file = user_file::read(Some(dir.path())).unwrap();
    let none = Environment::default();
    let expected = format!("the address comes from base_url of openai in {}", config.display());
    assert_eq!(hint(&none, &file, "openai"), Some(expected));
    let environment = Environment::of(&[], &[("OPENAI_BASE_URL", "http://a"), ("OLLAMA_HOST", "b")]);
    assert_eq!(hint(&environment, &file, "openai").unwrap(), "the address comes from OPENAI_BASE_URL");
    let start = "Ollama must be running there (`ollama serve`)";
    let expected = format!("the address comes from OLLAMA_HOST; {start}");
    assert_eq!(hint(&environment, &file, "ollama"), Some(expected));
    assert_eq!(hint(&none, &file, "ollama").unwrap(), start);
    assert_eq!(hint(&none, &file, "anthropic"), None, "the control");
}

#[test]
fn unknown_models_name_the_setting_that_has_them() {
    let fault = |environment: &Environment, file: &UserFile, requested: Option<&ModelId>| {
        format!("{:#}", find(environment, file, requested, &ProviderLimits::default()).err().unwrap())
    };
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.yaml");
    std::fs::write(&config, "model: own-9").unwrap();
    let file = user_file::read(Some(dir.path())).unwrap();
    let mut environment = Environment::default();
    let expected = format!("model in {}: unknown model \"own-9\": it is", config.display());
    assert!(fault(&environment, &file, None).starts_with(&expected));
    environment.model = Some("own-8".into());
    assert!(fault(&environment, &file, None).starts_with("MODEGATE_MODEL: unknown model \"own-8\""));
    let requested = ModelId::new("own-7");
    assert!(
        fault(&environment, &file, Some(&requested)).starts_with("unknown model \"own-7\""),
        "the control"
    );
}

#[test]
fn api_key_is_not_sent_to_another_base_url() {
    let environment =
        Environment::of(&[("OPENAI_API_KEY", "o")], &[("OPENAI_BASE_URL", "http://127.0.0.1:1/v1/")]);
    let file = UserFile::default();
    let remote = find(&environment, &file, None, &ProviderLimits::default()).unwrap();
    assert_eq!(remote.endpoints["openai"].base_url, "http://127.0.0.1:1/v1");
    assert!(remote.endpoints["openai"].key.is_some());
    assert!(remote.endpoints["openai-responses"].key.is_none(), "the key belongs to another server");
    assert_eq!(remote.catalog.default_model().as_str(), "openai/gpt-6-luna");

    let file: UserFile =
        serde_saphyr::from_str("providers: {anthropic: {base_url: 'https://proxy.example'}}").unwrap();
    let environment = Environment::of(&[("ANTHROPIC_API_KEY", "a")], &[]);
    let remote = find(&environment, &file, None, &ProviderLimits::default()).unwrap();
    assert!(remote.endpoints["anthropic"].key.is_none(), "the key is for the provider's own URL");
}

#[test]
fn address_without_a_scheme_is_named_with_its_source() {
    let fault = |environment: &Environment, file: &str| {
        let file: UserFile = serde_saphyr::from_str(file).unwrap();
        find(environment, &file, None, &ProviderLimits::default()).unwrap().endpoints["openai"].fault.clone()
    };
    let with = |url| Environment::of(&[], &[("OPENAI_BASE_URL", url)]);
    let expected = "is \"127.0.0.1:9\": begin it with http:// or https://";
    let text = fault(&with("127.0.0.1:9"), "{}").unwrap();
    assert_eq!(text, format!("OPENAI_BASE_URL {expected}"));
    let text = fault(&Environment::default(), "providers: {openai: {base_url: '127.0.0.1:9'}}").unwrap();
    assert_eq!(text, format!("base_url of openai in the settings {expected}"));
    for url in ["http://127.0.0.1:9", "HTTPS://127.0.0.1:9/v1"] {
        assert_eq!(fault(&with(url), "{}"), None, "the control: {url}");
    }
}

#[test]
fn server_without_a_key_is_usable() {
    let environment = Environment::of(&[], &[("OPENAI_BASE_URL", "http://localhost:8080/v1")]);
    assert_eq!(
        default_model(&environment, "providers: {openai: {models: [{name: local, context: 32768}]}}"),
        "openai/local"
    );
}

#[test]
fn ollama_host_accepts_many_forms() {
    for (host, url) in [
        ("localhost", "http://localhost:11434"),
        ("0.0.0.0:5000", "http://127.0.0.1:5000"),
        (":5000", "http://127.0.0.1:5000"),
        ("http://box", "http://box"),
        ("https://box/path/", "https://box/path"),
        ("::1", "http://[::1]:11434"),
        ("[::]:9", "http://[::1]:9"),
    ] {
        assert_eq!(ollama_url(host), url, "{host}");
    }
}

#[test]
fn key_header_of_the_settings_is_for_the_address_of_the_settings() {
    let yaml =
        "providers: {openai: {base_url: 'https://a.example?v=1', key_header: api-key, key_command: pass}}";
    let file: UserFile = serde_saphyr::from_str(yaml).unwrap();
    let header = |environment: &Environment| {
        let endpoint = Arc::clone(
            &find(environment, &file, None, &ProviderLimits::default()).unwrap().endpoints["openai"],
        );
        (endpoint.base_url.clone(), endpoint.key_header.clone())
    };
    let own = Environment::of(&[("OPENAI_API_KEY", "o")], &[("OPENAI_BASE_URL", "https://b.example")]);
    assert_eq!(header(&own), ("https://b.example".into(), None));
    assert_eq!(header(&Environment::default()), ("https://a.example?v=1".into(), Some("api-key".into())));
}
