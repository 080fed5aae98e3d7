use super::*;

fn file(yaml: &str) -> UserFile {
    serde_saphyr::from_str(yaml).unwrap()
}

#[cfg(unix)]
#[test]
fn key_file_readable_by_others_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(CONFIG);
    let write = |text: &str, mode: u32| {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        read(Some(dir.path())).map(|file| file.providers.len()).map_err(|error| format!("{error:#}"))
    };
    let key = "providers: {anthropic: {api_key: s3cret}}";
    assert!(write(key, 0o644).unwrap_err().contains("chmod 600"));
    assert_eq!(write(key, 0o600), Ok(1));
    assert_eq!(write("providers: {anthropic: {key_command: pass}}", 0o644), Ok(1));
    for (wrong, words) in [
        ("providers: {acme: {}}", "the providers are anthropic"),
        ("providers: {anthropic: {api_keyy: s3cret}}", "the keys here are api_key"),
        ("providers: {anthropic: {api_key: s3cret, key_command: pass}}", "keep one"),
        ("providers: {openai: {base_url: 'localhost:8080'}}", "does not start with http"),
        ("providers: {anthropic: {api_key: [s3cret]}}", "line 1, column 34: api_key: expected a text"),
    ] {
        let error = write(wrong, 0o600).unwrap_err();
        assert!(error.contains(words) && !error.contains("s3cret"), "{error}");
    }
}

#[test]
fn setup_round_trips_and_keeps_other_providers() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("modegate");
    let setup = |provider, key: Option<&str>| Setup {
        provider,
        key: key.map(SecretString::from),
        key_command: key.is_none().then(|| "pass".to_owned()),
        base_url: None,
        model: format!("{provider}/m"),
    };
    write(&folder, &setup("anthropic", Some("k: \"1\" # x"))).unwrap();
    write(&folder, &setup("gemini", None)).unwrap();
    let read = read(Some(&folder)).unwrap();
    assert_eq!(read.model.as_deref(), Some("gemini/m"));
    assert_eq!(read.providers["anthropic"].api_key.as_ref().unwrap().expose_secret(), "k: \"1\" # x");
    assert_eq!(read.providers["gemini"].key_command.as_deref(), Some("pass"));
}

#[test]
fn stored_key_is_not_used_for_another_base_url() {
    let made = || file("model: openai/a\nproviders: {openai: {api_key: k, base_url: 'https://one'}}");
    let other = merge(file("providers: {openai: {base_url: 'https://two'}}"), made());
    assert!(other.providers["openai"].api_key.is_none());
    let own = merge(file("providers: {openai: {api_key: mine}}"), made());
    assert_eq!(own.providers["openai"].base_url, None, "the user's own key goes to the provider's own URL");
    let same = merge(file("providers: {openai: {models: [b]}}\nmodel: openai/b"), made());
    assert!(same.providers["openai"].api_key.is_some());
    assert_eq!(same.model.as_deref(), Some("openai/b"));
}

#[test]
fn store_sync_is_configurable() {
    let file: UserFile = serde_saphyr::from_str("store: {sync: full}\n").unwrap();
    assert_eq!(file.store.unwrap_or_default().sync, crate::store::Sync::Full);
    assert_eq!(UserFile::default().store.unwrap_or_default().sync, crate::store::Sync::Normal);
    assert!(serde_saphyr::from_str::<UserFile>("store: {sync: often}\n").is_err());
}

#[test]
fn fetch_settings_are_validated_and_user_only() {
    let fetch_client = |yaml: &str| {
        let settings = file(yaml).fetch.unwrap_or_default();
        settings.to_fetch_client().map(|_| ()).map_err(|error| format!("{error:#}"))
    };
    assert_eq!(fetch_client("model: x/y"), Ok(()));
    assert_eq!(
        fetch_client(
            "fetch: {allow_private: ['localhost:8080', 'wiki.corp', '[::1]:*'], proxy: 'http://p:1'}"
        ),
        Ok(())
    );
    let error = fetch_client("fetch: {allow_private: ['http://wiki.corp/']}").unwrap_err();
    assert!(error.contains("allow_private") && error.contains("HOST:PORT"), "{error}");
    assert!(fetch_client("fetch: {proxy: 'p:1'}").unwrap_err().contains("does not start with http"));
    assert!(serde_saphyr::from_str::<UserFile>("fetch: {allow: [x]}").is_err(), "an unknown key");
    // A project's file has no such key.
    let project = crate::policy::Layers::default().add(
        "p",
        "fetch: {allow_private: [x]}",
        crate::policy::LayerOwner::Project,
    );
    assert!(project.is_err());
}

#[test]
fn obsolete_terminal_key_is_accepted_and_reported() {
    let obsolete = |yaml: &str| file(yaml).shell.unwrap_or_default().obsolete();
    for value in ["own", "client"] {
        let text = obsolete(&format!("shell: {{terminal: {value}}}")).unwrap_or_default();
        assert!(text.contains("shell.terminal") && text.contains("remove the key"), "{text}");
    }
    assert_eq!(obsolete("shell: {sandbox: off}"), None);
    assert_eq!(obsolete("{}"), None);
    assert!(
        serde_saphyr::from_str::<UserFile>("shell: {terminal: window}").is_err(),
        "the key never had this value"
    );
}
