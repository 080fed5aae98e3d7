use super::*;

fn replaced(text: &str, old: &str, new: &str) -> Result<(String, Vec<&'static str>), MatchRefusal> {
    replace(text, old, new, false, 1 << 20).map(|edited| (edited.text, edited.ignored))
}

fn check(text: &str, old: &str, new: &str, expected: &str, ignored: &[&'static str]) {
    assert_eq!(replaced(text, old, new), Ok((expected.to_owned(), ignored.to_vec())), "{text:?} {old:?}");
}

fn ambiguous(lines: [usize; 2]) -> MatchRefusal {
    MatchRefusal::Ambiguous { lines: lines.into(), count: 2 }
}

fn is_missing(text: &str, old: &str) -> bool {
    matches!(replaced(text, old, "x"), Err(MatchRefusal::Missing(_)))
}

const CHARACTERS: &str = "the form of quotes, dashes and blanks";

#[test]
fn line_endings_adapt_to_the_replaced_lines() {
    check("a\nb\nc", "b", "x\ny", "a\nx\ny\nc", &[]);
    check("a\r\nb\r\nc\r\n", "a\nb", "x\ny", "x\r\ny\r\nc\r\n", &[]);
    check("a\r\nb\n", "b\n", "x\n", "a\r\nx\n", &[]);
    check("a\r\nb\nc\r\n", "a\nb\nc\n", "x\ny\nz\nw\n", "x\r\ny\nz\r\nw\r\n", &[]);
    check("a\r\nb\nc\n", "a\nb\n", "a\nnew\nb\n", "a\r\nnew\r\nb\nc\n", &[]);
    check("a\r\nb\r\n", "\nb", "X\nb", "aX\r\nb\r\n", &[]);
    check("a\r\nb\n", "a\r\n", "a\n", "a\nb\n", &[]);
    check("\u{feff}a\nb\n", "a\nb", "c\nb", "\u{feff}c\nb\n", &[]);
}

#[test]
fn line_numbers_are_stripped_if_every_line_has_one() {
    let numbers = ["line numbers"];
    check("a\n\tb\nc\n", "     1\ta\n     2\t\tb\n", "     1\ta\n     2\t\tB\n", "a\n\tB\nc\n", &numbers);
    check("a\nb\n", "1\ta\n2\tb", "1\ta\nnew\n2\tb", "a\nnew\nb\n", &numbers);
    check("a\n  b\n", "     1\ta\n     2\tb", "a\nB", "a\n  B\n", &["line numbers", "indentation"]);
    check("1\ta\n", "1\ta", "1\tb", "1\tb\n", &[]);
    assert!(is_missing("a\nb\n", "1\ta\nb"));
    assert!(is_missing("a\nb\n", "1\ta\n3\tb"));
}

#[test]
fn typographic_characters_stay_as_the_file_has_them() {
    check("x = \"a\"\ny\n", "x = “a”", "x = “b”", "x = \"b\"\ny\n", &[CHARACTERS]);
    check("say “a” – now\n", "say \"a\" - now", "say \"b\" - now", "say “b” – now\n", &[CHARACTERS]);
    check("say “a”\n", "say \"a\"", "say \"a\", \"b\"", "say “a”, “b”\n", &[CHARACTERS]);
    check("don't\n", "don’t", "don’t, won’t", "don't, won't\n", &[CHARACTERS]);
    check("a\u{a0}b\n", "a b", "a c", "a\u{a0}c\n", &[CHARACTERS]);
    check("a b\n", "a\u{a0}b", "a\u{a0}c\u{a0}d", "a c d\n", &[CHARACTERS]);
}

#[test]
fn blanks_at_line_ends_are_ignored() {
    check("a\nb\n", "a  \nb", "a  \nc \n", "a\nc\n\n", &[CHARACTERS]);
    check("a  \nb\n", "a\nb", "a\nc", "a  \nc\n", &[CHARACTERS]);
    check("a\nb", "a\nb\n", "a\nc\n", "a\nc", &[CHARACTERS]);
    check(
        "if a:  \n\tb\n",
        "if a:\n\tb",
        "if a:\n\tif c:\n\t\tb",
        "if a:  \n\tif c:\n\t\tb\n",
        &[CHARACTERS],
    );
    assert!(is_missing("foobar\n", "foo "));
}

#[test]
fn new_text_takes_the_indentation_of_the_file() {
    let indentation = ["indentation"];
    check("\tif a:\n\t\tb\n", "if a:\n    b", "if a:\n    b\n    c", "\tif a:\n\t\tb\n\t\tc\n", &indentation);
    check(
        "    a\n    b\n",
        "  a\n  b\n",
        "  a\n  if c:\n    b\n",
        "    a\n    if c:\n        b\n",
        &indentation,
    );
    check(
        "\ta(\n\t\tb)\n",
        "    a(\n        b)",
        "    a(\n        b,\n        c)",
        "\ta(\n\t\tb,\n\t\tc)\n",
        &indentation,
    );
    check(
        "  f {\n    x\n  }\n",
        "f {\n      x\n    }",
        "f {\n      y\n    }",
        "  f {\n    y\n  }\n",
        &indentation,
    );
    assert!(is_missing("if a:\n    b\nc\n", "if a:\n    b\n    c"));
}

#[test]
fn ambiguous_text_is_refused_at_every_step() {
    assert_eq!(replaced("a\nb\na", "a", "y"), Err(ambiguous([1, 3])));
    assert_eq!(replaced("aXaXa", "aXa", "y"), Err(ambiguous([1, 1])));
    assert_eq!(replaced("“a”\n\"a\" \n", "\"a\" \n".trim_end(), "y"), Ok(("“a”\ny \n".into(), vec![])));
    assert_eq!(replaced("\ta b\n  a b\n", "    a b\n", "    y\n"), Err(ambiguous([1, 2])));
    assert_eq!(replaced("a “b”\na „b“\n", "a \"b\"", "y"), Err(ambiguous([1, 2])));
    let all = replace("a “b”\na „b“\na “b”", "a \"b\"", "a \"c\"", true, 1000).unwrap();
    assert_eq!((all.text.as_str(), all.lines), ("a “c”\na „c“\na “c”", vec![1, 2, 3]));
    assert_eq!(replace("aaaa", "aa", "b", true, 1000).unwrap().text, "bb");
}

/// `  x` twice is a place of its own, although it overlaps lines that look alike but for their indentation.
#[test]
fn a_place_with_other_indentation_hides_no_other_place() {
    let check = |old, is_all, expected| {
        let edited = replace("x\n  x\n  x\n", old, " y\n y", is_all, 1000).map(|edited| edited.text);
        assert_eq!(edited, expected, "{old:?}");
    };
    check(" x\n x", false, Ok("x\n  y\n  y\n".into()));
    check(" x\n x", true, Ok("x\n  y\n  y\n".into()));
    check("x\nx", false, Err(ambiguous([1, 2])));
}

#[test]
fn results_name_the_first_changed_line() {
    let edit = |old, new| {
        let edited = replace("a\nb\nc\nd\n", old, new, false, 1000).unwrap();
        (edited.lines[0], edited.added, edited.removed)
    };
    assert_eq!(edit("a\nb\nc\n", "a\nb\nx\nc\n"), (3, 1, 0));
    assert_eq!(edit("b", "x"), (2, 1, 1));
    assert_eq!(edit("b\nc\n", ""), (2, 0, 2));
    assert_eq!(replace("a", "a", "bb", false, 1), Err(MatchRefusal::Large(2)));
    assert_eq!(replaced("\"a\"\n", "“a”", "\"a\""), Err(MatchRefusal::Unchanged));
}

/// Such lines match nothing in the file.
#[test]
fn blanks_after_the_last_line_ending_are_no_line() {
    let characters = [CHARACTERS];
    check("a\nb\nc\n", "a\nb\n\t", "a\nx\n", "a\nx\nc\n", &characters);
    check("a\nb\nc\n", "a\nb\n\t", "a\nx\n\t", "a\nx\nc\n", &characters);
    check("  a\n  b\nc\n", "  a\n  b\n ", "\nx\n", "\nx\nc\n", &characters);
    check("a\nb", "a\nb\n  ", "a\nx\n  ", "a\nx", &characters);
}

proptest::proptest! {
    /// The alphabet has the characters that the steps treat specially.
    #[test]
    fn no_text_panics(
        text in "[ab \t\r\n“\"é\u{feff}]{0,24}",
        old in "[ab \t\r\n“\"é\u{feff}]{0,12}",
        new in "[ab \t\r\n“\"é\u{feff}]{0,12}",
        is_all in proptest::bool::ANY,
    ) {
        let _ = replace(&text, &old, &new, is_all, 1_000);
        let part: String = text.chars().take(9).chain(old.chars().filter(|c| c.is_whitespace())).collect();
        let _ = replace(&text, &part, &new, is_all, 1_000);
    }
}

const PREFIXES: &str = "the prefixes of search_files";
const ESCAPE: &str = "an escape too much";
const ENTITIES: &str = "HTML entities";
const SPACING: &str = "blanks within lines";
const LEFT_OUT: &str = "the lines left out";

#[test]
fn prefixes_of_search_files_are_stripped() {
    let check_one =
        |old: &str, new: &str, expected: &str| check("a\n  b-1-x\nc\n", old, new, expected, &[PREFIXES]);
    check_one("src/f.rs:2:  b-1-x", "src/f.rs:2:  y", "a\n  y\nc\n");
    check_one("src/f.rs:2:  b-1-x\n", "  y\n", "a\n  y\nc\n");
    check_one(
        "f-2.rs-1-a\nf-2.rs:2:  b-1-x\n",
        "f-2.rs-1-a\nnew\nf-2.rs:2:  b-1-x\n",
        "a\nnew\n  b-1-x\nc\n",
    );
    // No path, other files, numbers that do not follow each other, and a part of a line.
    for old in ["f:1:a", "a.rs:1:a\nb.rs:2:  b-1-x", "a.rs:1:a\na.rs:3:c", "a.rs:2:b-1"] {
        assert!(is_missing("a\n  b-1-x\nc\n", old), "{old}");
    }
}

#[test]
fn one_level_of_escapes_is_undone() {
    check("say(\"a\");\nb\n", "say(\\\"a\\\");\\nb", "say(\\\"c\\\");\\nb", "say(\"c\");\nb\n", &[ESCAPE]);
    check(
        "print(\"a\\n\")\n",
        "print(\\\"a\\\\n\\\")",
        "print(\\\"b\\\\n\\\")",
        "print(\"b\\n\")\n",
        &[ESCAPE],
    );
    // The file has the escape itself.
    check("x = 'a\\tb'\n", "a\\tb", "a\\tc", "x = 'a\\tc'\n", &[]);
    let is_refused = |old: &str, new: &str| {
        let refused = replaced("say(\"a\");\nb\n", old, new);
        assert!(matches!(refused, Err(MatchRefusal::Missing(_))), "{old:?} {new:?}: {refused:?}");
    };
    // The new text has an escape that the old one does not explain, or both forms.
    is_refused("say(\\\"a\\\");", "say(\\\"a\\n\\\");");
    is_refused("say(\\\"a\\\");", "say(\\\"a\\\", \"b\");");
    is_refused("say(\"a\");\\nb\nc", "x");
}

#[test]
fn entities_are_read_unless_the_file_has_some() {
    check("if a < b && c\n", "if a &lt; b &amp;&amp; c", "if a &gt; b", "if a > b\n", &[ENTITIES]);
    assert!(is_missing("if a < b\n&amp;\n", "if a &lt; b"));
    assert!(is_missing("if a < b > c\n", "if a &lt; b > c &lt; d"));
}

#[test]
fn blanks_within_lines_keep_the_form_of_the_file() {
    check("a\nb=0\n", "b = 0", "b = 1", "a\nb=1\n", &[SPACING]);
    check(
        "if (x) {\n\tf( a,b );\n}\n",
        "if(x){\n    f(a, b);\n}",
        "if(x){\n    f(a, c);\n}",
        "if (x) {\n\tf( a,c );\n}\n",
        &[SPACING],
    );
    for (file, old) in
        [("returnx\n", "return x"), ("s = \"a b\"\n", "s = \"ab\""), ("x = a--b\n", "x = a - -b")]
    {
        assert!(is_missing(file, old), "{old}");
    }
    assert_eq!(replaced("b=0\nb =0\n", "b = 0", "c"), Err(ambiguous([1, 2])));
}

#[test]
fn lines_between_two_anchors_may_be_left_out() {
    let file = "def f():\n    a()\n    b()\n    return 1\n\ndef g():\n    a()\n    return 2\n";
    let check = |old: &str, new: &str, from: &str, to: &str| {
        let expected = file.replace(from, to);
        assert_eq!(replaced(file, old, new), Ok((expected, vec![LEFT_OUT])), "{old:?}");
    };
    for dots in ["# ... existing code ...", "...", "# …", "// ... the rest"] {
        let text = |head: &str, tail: &str| format!("{head}\n    {dots}\n    {tail}\n");
        check(&text("def f():", "return 1"), &text("def f():", "return 3"), "return 1", "return 3");
        check(&text("def f():", "return 1"), &text("def h():", "return 1"), "def f():", "def h():");
    }
    let refused = |old: &str, new: &str| {
        let outcome = replaced(file, old, new);
        assert!(outcome.is_err(), "{old:?} {new:?}: {outcome:?}");
    };
    let between_functions = ("a()\n...\nz()\n", "a()\n...\ny()\n");
    let outcome = replaced("a()\nb()\nz()\n", between_functions.0, between_functions.1);
    assert_eq!(outcome, Ok(("a()\nb()\ny()\n".to_owned(), vec![LEFT_OUT])), "no block");
    // The second anchor is in another function.
    refused("def f():\n    ...\n    return 2\n", "def f():\n    ...\n    return 3\n");
    // The new text does not say what is between; an anchor is missing, not unique, or above the other.
    refused("def f():\n    ...\n    return 1\n", "def f():\n    return 1\n");
    refused("def f():\n    ...\n    return 9\n", "def h():\n    ...\n    return 9\n");
    refused("    a()\n    ...\n    return 2\n", "    x()\n    ...\n    return 2\n");
    refused("def g():\n    ...\n    return 1\n", "def h():\n    ...\n    return 1\n");
    refused(
        "def f():\n    ...\n    b()\n    ...\n    return 1\n",
        "def h():\n    ...\n    b()\n    ...\n    return 1\n",
    );
}

#[test]
fn lines_after_a_loose_match_have_their_numbers() {
    let edited = replace("a\n\tb\n\tc\nd\n", "b\nc\n", "b\nx\nc\n", false, 1000).unwrap();
    assert!(edited.is_loose);
    assert_eq!(lines_now(&edited.text, &edited.now), "     2\t\tb\n     3\t\tx\n     4\t\tc\n");
    let edited = replace("a\nb\n", "     2\tb", "     2\tc", false, 1000).unwrap();
    assert!(!edited.is_loose, "the control: the text is there as it is");
    let long: String = (0..40).map(|at| format!("{at} =1\n")).collect();
    let edited = replace(&long, &long.replace(" =", "="), "x\n".repeat(40).as_str(), false, 1000).unwrap();
    assert!(lines_now(&edited.text, &edited.now).ends_with("    24\tx\n[…]\n"));
}
