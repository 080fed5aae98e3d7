use super::*;

fn rejection(status: u16, body: &str) -> ProviderError {
    let rejection = Rejection {
        status,
        body,
        wait: None,
        host: "api.example",
        model: "m-1",
        key_variable: "EXAMPLE_KEY",
        has_key: true,
    };
    rejection.explain()
}

fn check(status: u16, body: &str, failure: Failure, retry: Retry, words: &str) {
    let ProviderError { error, retry: found } = rejection(status, body);
    assert_eq!((error.failure, found), (failure, retry), "{error}");
    assert!(error.text.contains(words), "{error}");
}

#[test]
fn transient_errors_are_distinguished_from_permanent_errors() {
    let quota = r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}"#;
    let limited =
        r#"{"error":{"message":"Rate limit reached","type":"requests","code":"rate_limit_exceeded"}}"#;
    check(
        429,
        limited,
        Failure::Other,
        Retry::Busy(None),
        "limiting the rate (HTTP 429): Rate limit reached",
    );
    check(429, quota, Failure::Other, Retry::Never, "is used up");
    let with_success = |kind: &str| format!(r#"{{"error":{{"message":"Not now","type":"{kind}"}}}}"#);
    check(200, &with_success("overloaded_error"), Failure::Other, Retry::Busy(None), "reply: Not now");
    let too_long = with_success("context_length_exceeded");
    check(200, &too_long, Failure::ContextTooLong(Excess::of(&too_long)), Retry::Never, "Not now");
    check(200, r#"{"error":null,"id":1}"#, Failure::Other, Retry::Never, "answered without a stream");
    check(
        529,
        r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
        Failure::Other,
        Retry::Busy(None),
        "overloaded",
    );
    check(
        400,
        r#"{"error":{"message":"bad field"}}"#,
        Failure::Other,
        Retry::Never,
        "rejects the request (HTTP 400): bad field",
    );
    check(
        404,
        r#"{"error":"model \"x\" not found"}"#,
        Failure::Other,
        Retry::Never,
        "does not have the model \"m-1\"",
    );
    check(307, "", Failure::Other, Retry::Never, "redirects to another address");
    check(502, "", Failure::Other, Retry::Later, "no reason given");
}

#[test]
fn retry_delay_is_read_from_the_error_body() {
    let gemini = r#"[{"error":{"code":429,"message":"Slow down","status":"RESOURCE_EXHAUSTED","details":[{"@type":"x"},{"retryDelay":"7.5s"}]}}]"#;
    check(429, gemini, Failure::Other, Retry::Busy(Some(Duration::from_millis(7500))), "Slow down");
}

#[test]
fn rejected_key_is_reported_without_its_value() {
    check(
        401,
        r#"{"error":{"message":"Incorrect API key provided: sk-abc***xyz"}}"#,
        Failure::Key,
        Retry::Never,
        "check EXAMPLE_KEY",
    );
    let gemini =
        r#"{"error":{"code":400,"message":"API key not valid.","details":[{"reason":"API_KEY_INVALID"}]}}"#;
    check(400, gemini, Failure::Key, Retry::Never, "check EXAMPLE_KEY");
    assert!(!rejection(401, "sk-abc").error.text.contains("sk-abc"));
}

#[test]
fn missing_key_is_not_reported_as_rejected() {
    let rejection = Rejection {
        status: 401,
        body: "",
        wait: None,
        host: "api.example",
        model: "m-1",
        key_variable: "EXAMPLE_KEY",
        has_key: false,
    };
    let text = rejection.explain().error.text;
    assert!(text.contains("requires a key (HTTP 401), and none was sent"), "{text}");
}

#[test]
fn context_length_errors_of_every_provider_are_recognised() {
    for body in [
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 213462 tokens > 200000 maximum"}}"#,
        r#"{"error":{"message":"Your input exceeds","code":"context_length_exceeded"}}"#,
        r#"{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error"}}"#,
        r#"{"object":"error","message":"This model's maximum context length is 8192 tokens."}"#,
        r#"{"error":{"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}"#,
    ] {
        let failure = Failure::ContextTooLong(Excess::of(body));
        check(400, body, failure, Retry::Never, "too long for m-1");
    }
}

#[test]
fn html_error_page_is_recognised() {
    check(403, "\n<!DOCTYPE html><title>Sign in</title>", Failure::Other, Retry::Never, "web page");
    check(502, "<html><h1>Bad gateway</h1>", Failure::Other, Retry::Later, "web page");
}

#[test]
fn keys_are_redacted_from_quoted_errors() {
    assert_eq!(
        redact("bad abc123secret, and sk-proj-123456789!", Some("abc123secret")),
        "bad [key], and [key]!"
    );
    assert_eq!(redact("the task-list of sk-1", None), "the task-list of sk-1");
    assert_eq!(redact("an xylophone", Some("x")), "an xylophone", "too short for a key");
}

#[test]
fn refused_parameters_differ_from_invalid_values() {
    let optional = ["stream_options", "reasoning_effort", "block_binding", "signature"];
    for (error, part) in [
        ("Unsupported parameter: 'stream_options'", Some("stream_options")),
        (
            "[{\"type\":\"extra_forbidden\",\"loc\":[\"body\",\"reasoning_effort\"]}]",
            Some("reasoning_effort"),
        ),
        ("block_binding: Extra inputs are not permitted", Some("block_binding")),
        ("messages.1.content.0: Invalid `signature` in `thinking` block.", Some("signature")),
        ("Function call is missing a thought_signature in functionCall parts.", Some("signature")),
        ("Unsupported value: 'reasoning_effort' does not support 'minimal' with this model.", None),
        ("Function tools with reasoning_effort are not supported for gpt-x in /v1/chat/completions.", None),
        (
            "The `reasoning_content` in the thinking mode must be passed back to the API.",
            Some(NEEDS_THOUGHTS),
        ),
        ("messages.4.content.1: Could not process image", None),
        ("temperature is too high", None),
    ] {
        assert_eq!(refused_part(error, &optional, &[]), part, "{error}");
    }
    assert_eq!(
        refused_part("Unknown stream_options", &optional, &["stream_options"]),
        None,
        "the parameter was not sent"
    );
}
