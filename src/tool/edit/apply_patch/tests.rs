use super::*;

fn operations(patch: &str) -> Vec<PatchOperation> {
    unified::parse(patch).unwrap().into_iter().map(|file| file.operation).collect()
}

fn patched(old: &str, patch: &str) -> Result<String, String> {
    let file = unified::parse(patch)?.remove(0);
    let file = PatchedFile { operation: file.operation, at: 0, executable: None, rounds: vec![file.hunks] };
    file.patched("f", old, false).map(|patched| patched.text)
}

fn check(old: &str, hunks: &str, expected: &str) {
    assert_eq!(patched(old, &format!("--- a/f\n+++ b/f\n{hunks}")).as_deref(), Ok(expected), "{hunks}");
}

fn refused(old: &str, hunks: &str, part: &str) {
    let error = patched(old, &format!("--- a/f\n+++ b/f\n{hunks}")).unwrap_err();
    assert!(error.contains(part), "{error}");
}

#[test]
fn hunk_counts_delimit_hunks() {
    check("a\n- \nb\nc\n", "@@ -1,4 +1,3 @@ fn x()\n a\n-- \n b\n-c\n+d\n", "a\nb\nd\n");
    check("-- one\nx\n", "@@ -1,2 +1,2 @@\n--- one\n+++ two\n x\n", "++ two\nx\n");
    check("-- a/f\nx\n", "@@ -1,2 +1,2 @@\n--- a/f\n+++ b/f\n x\n", "++ b/f\nx\n");
    check("a\n\nb\n", "@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n", "a\n\nc\n");
    check("x\n", "@@ -1 +1 @@\n-x\n+y\n\n\n", "y\n");
    check("x\na\nb\n", "@@ -1 +1 @@\n-x\n+y\n\n\n@@ -3 +3 @@\n-b\n+c\n", "y\na\nc\n");
    check("x\na\nb\n", "@@ -1,9 +1,9 @@\n-x\n+y\n a\n\n@@ -2,2 +2,2 @@\n-b\n+c\n", "y\na\nc\n");
    check("x\n\nb\n", "@@ -1,2 +1,2 @@\n-x\n+y\n\n@@ -3 +3 @@\n-b\n+c\n", "y\n\nc\n");
    refused("x\na\nb\n", "@@ -1 +1 @@\n-x\n+y\nwords\n@@ -3 +3 @@\n-b\n+c\n", "name the file of this hunk");
    check("x\n", "@@ -1 +1 @@\n-x\n+y\n-- \n2.34.1\n", "y\n");
    check("x", "@@ -1 +1 @@\n-x\n\\ No newline at end of file\n+y\n", "y\n");
    check("x\n", "@@ -1 +1 @@\n-x\n+y\n\\ No newline at end of file\n", "y");
}

#[test]
fn wrong_hunk_counts_and_positions_are_corrected_if_unambiguous() {
    check(
        "one\ntwo\nthree\n",
        "@@ -40,9 +40,2 @@ fn x\n one\n-two\n+2\n+2b\n three\n",
        "one\n2\n2b\nthree\n",
    );
    check("one\ntwo\nthree\n", "@@ -1,2 +1,2 @@\n one\n-two\n+2\n three\n", "one\n2\nthree\n");
    check("a\nb\nc\n", "@@ -2,9 +2,9 @@\n-b\n+B", "a\nB\nc\n");
    refused(
        "one\nTWO\nthree\n",
        "@@ -4,9 +4,2 @@\n one\n-two\n+2\n three\n",
        "     1\tone\n     2\tTWO\n     >\ttwo\n     3\tthree",
    );
    refused("x\na\nx\na\n", "@@ -3,9 +3,9 @@\n-x\n+y\n a\n", "correct its line counts");
    check("x\na\nx\na\n", "@@ -3,2 +3,2 @@\n-x\n+y\n a\n", "x\na\ny\na\n");
    refused("a\nb\n", "@@ -1,0 +2,5 @@\n+x\n", "does not say where");
    check("", "@@ -0,0 +1,5 @@\n+x\n", "x\n");
    refused("x\ny\n", "@@ -1,5 +1,6 @@\n+new\n", "only adds lines");
    refused("x\n", "@@ -1,9 +1,9 @@\n-x\n--- one\n+++ two\n@@ -2 +2 @@\n-a\n+b\n", "correct the counts");
    refused("x\ny\n", "@@ -1,3 +1,2 @@\n-x\n+z\ny\n", "goes on here");
    check("x\ny\n", "@@ -1,2 +1,2 @@\n-x\n+z\n y\n", "z\ny\n");
    refused("x\ny\nz\n", "@@ -1,1 +1,1 @@\n-x\n+X\ny\n z\n", "belongs to no hunk");
    let two = "@@ -1,9 +1,9 @@\n-x\n+y\n--- a/g\n+++ b/g\n@@ -1 +1 @@\n-x\n+y\n";
    assert_eq!(operations(&format!("--- a/f\n+++ b/f\n{two}")).len(), 2);
}

/// With counts that are too large, the header of the next file looks like changed lines.
#[test]
fn wrong_counts_do_not_reach_into_the_next_file() {
    for more in 0..4 {
        let section = |name: &str| {
            let count = 1 + more;
            format!("--- a/{name}\n+++ b/{name}\n@@ -1,{count} +1,{count} @@\n-one\n+1\n")
        };
        for names in [["f", "g", "h"], ["f", "f.rs", "dir/f"]] {
            let files = unified::parse(&names.map(section).concat()).unwrap();
            let paths: Vec<&str> = files.iter().flat_map(|file| file.operation.paths()).collect();
            assert_eq!(paths, names, "{more}");
            assert!(files.iter().all(|file| file.hunks.len() == 1 && file.hunks[0].old == "one\n"), "{more}");
        }
    }
    // The control: the next hunk lies behind the lines, and the counts are right.
    check("-- a/g\nx\ny\n", "@@ -1,1 +1,1 @@\n--- a/g\n+++ b/g\n@@ -3 +3 @@\n-y\n+z\n", "++ b/g\nx\nz\n");
}

#[test]
fn context_may_lack_its_blank() {
    let file = "def f():\n    a()\n    b()\n\n    c()\n";
    let expected = "def f():\n    a()\n    x()\n\n    c()\n";
    for hunk in [
        "@@\ndef f():\n    a()\n-    b()\n+    x()\n",
        "@@ -1,5 +1,5 @@\ndef f():\n    a()\n-    b()\n+    x()\n\n    c()\n",
        "@@ -2,2 +2,2 @@\n    a()\n-    b()\n+    x()\n",
    ] {
        check(file, hunk, expected);
    }
    // An added line keeps its indentation.
    check(file, "@@\n    a()\n+    y()\n    b()\n", "def f():\n    a()\n    y()\n    b()\n\n    c()\n");
    check("x\ny\n", "@@ -1,2 +1,2 @@\n-x\n+z\ny\n", "z\ny\n");
    refused(file, "@@\ndef g():\n    a()\n-    b()\n+    x()\n", "do not occur");
}

#[test]
fn hunk_without_context_needs_line_numbers_or_unique_lines() {
    check("a\nb\n", "@@ -1,0 +2 @@\n+x\n", "a\nx\nb\n");
    check("x\nx\nx\n", "@@ -2 +1,0 @@\n-x\n", "x\nx\n");
    check("a\nb\nc\n", "@@ -1 +1 @@\n-c\n+d\n", "a\nb\nd\n");
    refused("x\na\nx\n", "@@ -2 +2 @@\n-x\n+y\n", "more than once");
    refused("a\nb\n", "@@ -1,0 +9 @@\n+x\n", "does not say where");
    refused("a\nb\n", "@@ -1 +1 @@\n-a\n+x\n\\ No newline at end of file\n", "more lines follow");
}

#[test]
fn every_failing_hunk_is_reported() {
    let hunks = "@@ -1,2 +1,2 @@\n-A\n+a\n b\n@@ -4,2 +4,2 @@\n-d\n+D\n e\n@@ -7,3 +7,3 @@\n g\n-H\n+h\n i\n";
    let error = patched("a\nb\nc\nd\ne\nf\ng\nh\ni\n", &format!("--- a/f\n+++ b/f\n{hunks}")).unwrap_err();
    assert_eq!(
        error,
        "f: hunk 1 (line 3 of the patch) does not apply: its lines do not occur. The nearest lines, and after `>` what \
         the hunk has instead:\n     1\ta\n     >\tA\n     2\tb\n\
         f: hunk 3 (line 11 of the patch) does not apply: its lines do not occur. The nearest lines, and after `>` what \
         the hunk has instead:\n     7\tg\n     8\th\n     >\tH\n     9\ti"
    );
}

#[test]
fn file_line_endings_stay_unless_the_patch_changes_them() {
    check("a\r\nb\r\n", "@@ -1,2 +1,2 @@\n a\n-b\n+c\n", "a\r\nc\r\n");
    check("a\r\nb\r\n", "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\r\n", "a\r\nc\r\n");
    check("a\r\nb\r\n", "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+b\n", "a\r\nb\n");
    check("a\nb\n", "@@ -1,2 +1,2 @@\r\n a\r\n-b\r\n+c\r\n", "a\nc\n");
    check("\u{feff}a\nb\n", "@@ -1,2 +1,2 @@\n-a\n+c\n b\n", "\u{feff}c\nb\n");
    check("\u{feff}a\nb\n", "@@ -1,2 +1,2 @@\n-\u{feff}a\n+c\n b\n", "c\nb\n");
    refused("a\r\nb\r\n", "@@ -1,2 +1,2 @@\n-a\n-b\n+a\r\n+b\r\n", "new lines already");
    check("a\r\nb\nc\r\n", "@@ -1,3 +1,4 @@\n a\n-b\n+x\n+y\n c\n", "a\r\nx\ny\nc\r\n");
}

#[test]
fn every_patch_operation_is_parsed() {
    let patch = "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n\
                 --- a/from\n+++ b/to\n@@ -1 +1 @@\n-x\n+y\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n";
    let rename = PatchOperation::Rename { from: "from".into(), to: "to".into() };
    let (create, delete) = (PatchOperation::Create("new".into()), PatchOperation::Delete("old".into()));
    assert_eq!(operations(patch), [create, delete, rename, PatchOperation::Modify("f".into())]);
    let git = "diff --git a/a/old b/a/new\nsimilarity index 100%\nrename from a/old\nrename to a/new\n\
               diff --git a/x y b/x y\nnew file mode 100755\nindex 0000000..e69de29\n\
               diff --git a/gone b/gone\ndeleted file mode 100644\nindex e69de29..0000000\n\
               diff --git a/run b/run\nold mode 100755\nnew mode 100644\n\
               diff --git a/f b/g\nsimilarity index 90%\ncopy from f\ncopy to g\n";
    let files = unified::parse(git).unwrap();
    let kinds: Vec<_> = files.iter().map(|file| (format!("{:?}", file.operation), file.executable)).collect();
    let expected = [
        (r#"Rename { from: "a/old", to: "a/new" }"#, None),
        (r#"Create("x y")"#, Some(true)),
        (r#"Delete("gone")"#, None),
        (r#"Modify("run")"#, Some(false)),
        (r#"Copy { from: "f", to: "g" }"#, None),
    ];
    assert_eq!(kinds, expected.map(|(kind, executable)| (kind.to_owned(), executable)));
}

/// For `git apply`, such a hunk belongs at the end of the file, whatever its numbers say.
#[test]
fn hunk_without_trailing_context_changes_the_end_only_if_nothing_else_is_meant() {
    let file = "a:\n  x\n  y\n\nb:\n  x\n  y\n\nc:\n  x\n  y\n";
    let hunk = |header: &str| format!("{header}\n   x\n-  y\n+  z\n");
    for header in ["@@ -6,2 +6,2 @@", "@@ -6,2 +6,2 @@ b:"] {
        check(file, &hunk(header), &file.replace("b:\n  x\n  y", "b:\n  x\n  z"));
    }
    for header in ["@@ -90,2 +90,2 @@ b:", "@@ -7,2 +7,2 @@"] {
        refused(file, &hunk(header), "at lines 2, 6, 10");
    }
    check(file, &hunk("@@ -10,2 +10,2 @@"), &format!("{}z\n", &file[..file.len() - 2]));
    check("a\n  x\n  y\n", &hunk("@@ -90,2 +90,2 @@"), "a\n  x\n  z\n");
}

#[test]
fn hunks_without_line_numbers_need_one_place() {
    check("a\nb\nc\n", "@@\n a\n-b\n+B\n@@\n-c\n+C\n", "a\nB\nC\n");
    check("a\nb\nc\n", "@@ ... @@\n a\n-b\n\n", "a\nc\n");
    refused("x\na\nx\n", "@@\n-x\n+y\n", "at lines 1, 3: add context lines");
    refused("x\na\nx\n", "@@ -9,3 +9,3 @@\n-x\n+y\n", "at lines 1, 3: add context lines");
    refused("a\n", "@@\n+x\n", "does not say where");
    let twice = "a:\n  x\n  y\nb:\n  x\n  y\nc:\n  x\n  y\n";
    let next_lines = "@@ b:\n-  x\n+  w\n@@\n-  y\n+  z\n";
    check(twice, next_lines, "a:\n  x\n  y\nb:\n  w\n  z\nc:\n  x\n  y\n");
    refused(twice, "@@ a:\n-  x\n+  w\n@@\n-  x\n+  z\n", "at lines 5, 8");
    let file = "class A:\n  def f(self):\n    pass\nclass B:\n  def f(self):\n    pass\nend\n";
    let expected = "class A:\n  def f(self):\n    pass\nclass B:\n  def f(self):\n    return 1\nend\n";
    check(file, "@@ class B:\n@@ def f(self):\n-    pass\n+    return 1\n", expected);
    refused(file, "@@ def f(self):\n-    pass\n+    return 1\n", "at lines 3, 6");
    let added = "class A:\n  def f(self):\n    pass\nclass B:\n  x = 1\n  def f(self):\n    pass\nend\n";
    check(file, "@@ class B:\n+  x = 1\n", added);
}

#[test]
fn hunks_match_in_the_steps_of_edit_file() {
    check("\tif a:\n\t\tb\n", "@@\n if a:\n-    b\n+    c\n+    d\n", "\tif a:\n\t\tc\n\t\td\n");
    check("a “b” \n", "@@ -1 +1 @@\n-a \"b\"\n+a \"c\"\n", "a “c”\n");
    check("x\nlast", "@@\n x\n-last\n+final\n", "x\nfinal");
    refused("a\nB\n", "@@ -1,2 +1,2 @@\n a\n-b\n+B\n", "     1\ta\n     2\tB\n     >\tb");
}

#[test]
fn begin_patch_is_read() {
    let patch = "Here it is:\n```\n*** Begin Patch\n*** Add File: new\n+a\n+\n+b\n\n*** Delete File: old\n\
                 *** Update File: f\n@@ fn x\n a\n-b\n+c\n*** End of File\n\n*** Update File: g\n*** Move to: h\n\
                 *** Update File: i\n*** Move to: j\n-a\n+b\n*** End Patch\n```\n";
    let files = unified::parse(patch).unwrap();
    let rename = |from: &str, to: &str| PatchOperation::Rename { from: from.into(), to: to.into() };
    let (create, remove) = (PatchOperation::Create("new".into()), PatchOperation::Remove("old".into()));
    let expected = [create, remove, PatchOperation::Modify("f".into()), rename("g", "h"), rename("i", "j")];
    assert_eq!(operations(patch), expected);
    assert_eq!(files[0].hunks[0].new, "a\n\nb\n");
    assert_eq!(
        (files[2].hunks[0].anchors.as_slice(), files[2].hunks[0].is_at_end),
        (&["fn x".into()][..], true)
    );
    for (patch, part) in [
        ("*** Begin Patch\n*** Update File: f\n*** End Patch\n", "changes nothing"),
        ("*** Begin Patch\n*** Update File: f\n-a\n+b\nwords\n", "line 5: `words` belongs to no hunk"),
        ("*** Begin Patch\n*** End Patch\n", "there is no file in it"),
    ] {
        let error = unified::parse(patch).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn unsupported_and_malformed_patches_are_rejected() {
    let git = |rest: &str| format!("diff --git a/f b/f\n{rest}");
    for (patch, part) in [
        ("hello\n".to_owned(), "there is no file in it"),
        ("@@ -1 +1 @@\n-x\n+y\n".into(), "name the file"),
        ("--- a/f\n+++ b/f\n-x\n+y\n".into(), "a hunk header"),
        (git("index 1..2 100644\nBinary files a/f and b/f differ\n"), "binary"),
        (git("index 1..2 100644\nGIT binary patch\nliteral 0\n"), "binary"),
        (git("new file mode 120000\n--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n"), "symbolic link"),
        (git("index 1..2 160000\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n"), "submodule"),
        (git("index 1..2 100644\n"), "changes nothing"),
        (git("--- a/f\n+++ b/g\n@@ -1 +1 @@\n-x\n+y\n--- a/f\n+++ b/f\n@@ -1 2\n"), "no hunk header"),
        ("--- a/f\n+++ b/f\n@@@ -1 +1 @@@\n-x\n+y\n".into(), "no hunk header"),
        ("--- /dev/null\n+++ b/f\n@@ -0,0 +1,2 @@\n+x\n@y\n".into(), "goes on here"),
        (git("rename from f\n"), "both files"),
        (git("new file mode 100644\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n"), "/dev/null"),
        (git("--- a/other\n+++ b/other\n@@ -1 +1 @@\n-x\n+y\n"), "different files"),
        ("diff --cc f\nindex 1,2..3\n".into(), "merge"),
        ("--- /dev/null\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n".into(), "context or removed lines"),
        ("--- a/f\n+++ /dev/null\n@@ -1 +1 @@\n-x\n+y\n".into(), "keep or add lines"),
        ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n x\n".into(), "changes nothing"),
        ("x".repeat(3 << 20), "split it"),
    ] {
        let error = unified::parse(&patch).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}

/// Patches crafted to be slow end within seconds. The limit is for an unoptimised build on a busy machine.
#[test]
fn patch_time_is_bounded() {
    let began = std::time::Instant::now();
    let same = "a\n".repeat(500_000);
    let far = format!("@@ -9,20001 +9,20001 @@\n{}-b\n+c\n a\n", " a\n".repeat(20_000));
    refused(&same, &far, "does not apply");
    let hunks: String = (0..2_000).map(|_| "@@ -9,3 +9,3 @@\n a\n-b\n+c\n a\n").collect();
    refused(&same, &hunks, "1980 more hunks");
    let headers = "--- a/f\n+++ b/f\n@@ -1,99999 +1,99999 @@\n".repeat(20_000);
    assert!(unified::parse(&headers).is_err());
    let blank = "\n".repeat(3_000);
    let section = format!("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n{blank}");
    assert_eq!(unified::parse(&section.repeat(400)).unwrap().len(), 400);
    let hunk = format!("@@ -1 +1 @@\n-x\n+y\n{blank}");
    assert!(unified::parse(&format!("--- a/f\n+++ b/f\n{}", hunk.repeat(400))).is_ok());
    assert!(began.elapsed() < std::time::Duration::from_mins(2), "{:?}", began.elapsed());
}

#[test]
fn prefixes_of_git_are_removed() {
    let modify = |name: &str| vec![PatchOperation::Modify(name.into())];
    let header = |old: &str, new: &str| format!("diff --git {old} {new}\n");
    let patch = |old: &str, new: &str| {
        header(old, new) + &format!("index 1..2 100644\n--- {old}\n+++ {new}\n@@ -1 +1 @@\n-x\n+y\n")
    };
    for (old, new) in [("a", "b"), ("i", "w"), ("c", "i"), ("c", "w"), ("o", "w"), ("1", "2")] {
        let (old, new) = (format!("{old}/sub/f"), format!("{new}/sub/f"));
        assert_eq!(operations(&patch(&old, &new)), modify("sub/f"));
        let renamed = format!("{}-\nrename from sub/f\nrename to sub/f-\n", header(&old, &new).trim_end());
        let expected = PatchOperation::Rename { from: "sub/f".into(), to: "sub/f-".into() };
        assert_eq!(operations(&renamed), [expected]);
    }
    // Without prefixes, `a` and `b` are folders.
    assert_eq!(operations(&patch("sub/f", "sub/f")), modify("sub/f"));
    assert_eq!(operations(&patch("a/f", "a/f")), modify("a/f"));
    let moved = "diff --git a/f b/f\nrename from a/f\nrename to b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n";
    assert_eq!(operations(moved), [PatchOperation::Rename { from: "a/f".into(), to: "b/f".into() }]);
    let created = |old: &str, new: &str| {
        header(old, new) + &format!("new file mode 100644\n--- /dev/null\n+++ {new}\n@@ -0,0 +1 @@\n+y\n")
    };
    assert_eq!(operations(&created("b/f", "b/f")), [PatchOperation::Create("b/f".into())]);
    for patch in [patch("old/f", "new/f"), patch("x/f", "y/f"), created("old/f", "new/f")] {
        let error = unified::parse(&patch).unwrap_err();
        assert!(error.contains("`git diff --src-prefix=a/ --dst-prefix=b/`"), "{error}");
    }
}

/// Models repeat the end of one hunk at the start of the next.
#[test]
fn hunks_may_share_context_that_neither_changes() {
    let file = "def a():\n    return 1\n\ndef b():\n    return 2\n";
    let hunks = "@@\n def a():\n-    return 1\n+    return 10\n \n def b():\n@@\n def b():\n-    return 2\n+    return 20\n";
    let expected = "def a():\n    return 10\n\ndef b():\n    return 20\n";
    check(file, hunks, expected);
    // In the other order, and with line endings of the file.
    let (head, tail) = hunks.split_at(hunks.rfind("@@").unwrap());
    check(file, &[tail, head].concat(), expected);
    check(&file.replace('\n', "\r\n"), hunks, &expected.replace('\n', "\r\n"));
    // One changes the context of the other, or both add lines at the same place.
    refused("a\nb\nc\n", "@@\n a\n-b\n+B\n c\n@@\n-c\n+C\n", "changed by an earlier hunk");
    refused("a\nb\nc\n", "@@\n a\n-b\n+B\n@@\n a\n b\n-c\n+C\n", "changed by an earlier hunk");
    refused("a\nb\nc\n", "@@\n a\n+x\n b\n@@\n a\n+y\n b\n", "changed by an earlier hunk");
    refused("a\nb\nc\n", "@@\n a\n+x\n b\n@@\n a\n-b\n c\n", "changed by an earlier hunk");
    // The free place counts, as without shared context.
    check("h\nx\nb\nx\n", "@@\n x\n-b\n+c\n@@\n-x\n+z\n", "h\nx\nc\nz\n");
}

#[test]
fn lines_of_a_hunk_may_have_the_numbers_of_read_file() {
    let file = "import os\n\nx = 1\ny = 2\n";
    let expected = file.replace("x = 1", "x = 3");
    check(file, "@@\n 2\t\n-3\tx = 1\n+3\tx = 3\n 4\ty = 2\n", &expected);
    check(file, "@@ -2,3 +2,3 @@\n      2\t\n-     3\tx = 1\n+     3\tx = 3\n      4\ty = 2\n", &expected);
    check(file, "@@\n-src/f.py:3:x = 1\n+src/f.py:3:x = 3\n", &expected);
    check("3\tx\n", "@@\n-3\tx\n+3\ty\n", "3\ty\n");
    refused(file, "@@\n-3\tx = 1\n+3\tx = 3\n y = 2\n", "do not occur");
    refused("x\na\nx\n", "@@\n-3\tx\n+3\ty\n", "at lines 1, 3");
}

#[test]
fn last_line_of_a_begin_patch_may_be_indented() {
    let patch = "*** Begin Patch\n*** Update File: f\n@@\n-x\n+z\n y\n *** End Patch\n```\n";
    assert_eq!(patched("x\ny\n", patch).as_deref(), Ok("z\ny\n"));
    // The control: with an end of its own, the line is context.
    let patch = patch.replace("```", "*** End Patch");
    assert!(patched("x\ny\n", &patch).is_err());
    assert_eq!(patched("x\ny\n*** End Patch\n", &patch).as_deref(), Ok("z\ny\n*** End Patch\n"));
}

#[test]
fn hunk_of_context_is_skipped_beside_others() {
    for patch in [
        "*** Begin Patch\n*** Update File: a\n@@\n-x\n+y\n@@\n z\n*** Update File: b\n@@\n q\n*** End Patch\n",
        "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n+y\n@@ -3 +3 @@\n z\n--- a/b\n+++ b/b\n@@ -1 +1 @@\n q\n",
    ] {
        let files = unified::parse(patch).unwrap();
        let changes: Vec<bool> = files.iter().map(FilePatch::changes).collect();
        assert_eq!(changes, [true, false], "{patch}");
        let context: Vec<bool> = files[0].hunks.iter().map(|hunk| hunk.is_context).collect();
        assert_eq!(context, [false, true], "{patch}");
    }
    let error = unified::parse("*** Begin Patch\n*** Update File: a\n@@\n z\n*** End Patch\n").unwrap_err();
    assert_eq!(error, "line 3: the hunk changes nothing");
}

#[test]
fn added_line_that_leaves_code_out_is_refused() {
    let file = "def f():\n    a()\n    return 1\n";
    let hunk = "@@\n def f():\n-    a()\n-    return 1\n+    # ... existing code ...\n+    return 2\n";
    refused(
        file,
        hunk,
        "it adds the line `# ... existing code ...`: the code that it stands for would be lost.",
    );
    // The control: the file has the line, and the patch moves it.
    let file = "# ... existing code ...\na\nb\n";
    check(
        file,
        "@@\n-# ... existing code ...\n a\n+# ... existing code ...\n b\n",
        "a\n# ... existing code ...\nb\n",
    );
}
