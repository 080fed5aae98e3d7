//! Prompts to the offline model, one after the other in a session.

use super::sessions::CliFixture;

#[test]
fn repeated_prompts_get_the_same_answer() {
    let fixture = CliFixture::new();
    std::fs::write(fixture.work().join("calc.py"), "def add(a, b):\n    return a - b\n").unwrap();
    let plan = ["--mode", "plan", "--model", "offline", "-p", "where is add?"];
    let (code, first, errors) = fixture.run(&plan);
    assert!(code == 0 && first.contains("- `calc.py:1` `def add(a, b):`"), "{first}{errors}");
    for _ in 0..2 {
        let (code, again, errors) = fixture.run(&[&["--continue"], &plan[..]].concat());
        assert_eq!((code, again), (0, first.clone()), "{errors}");
    }
    let other = ["--continue", "--mode", "plan", "--model", "offline", "-p", "where is subtract?"];
    let (_, control, _) = fixture.run(&other);
    assert!(control.contains("searched this folder for `subtract` and found nothing"), "{control}");
}

#[test]
fn second_creation_of_a_session_creates_the_file() {
    let fixture = CliFixture::new();
    let mut arguments = vec!["--mode", "code", "--model", "offline", "-p"];
    for prompt in ["create one.txt with 1", "create two.txt with 2"] {
        let (code, answer, errors) = fixture.run(&[&arguments[..], &[prompt]].concat());
        assert_eq!(code, 0, "{answer}{errors}");
        arguments.insert(0, "--continue");
    }
    let read = |name| std::fs::read_to_string(fixture.work().join(name)).unwrap();
    assert_eq!((read("one.txt"), read("two.txt")), ("1\n".into(), "2\n".into()));
}
