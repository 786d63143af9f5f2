"""Examples with known figures: `dist/figures --self-test`."""

import tempfile
import unittest
from pathlib import Path

from circles import circles
from modules import Tree
from source import Source, outcomes
from tokens import COMMENT, DOC, LITERAL, tokens


def run() -> int:
    """Zero when every example has its figures, as an exit status."""
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(Figures)
    return 0 if unittest.TextTestRunner().run(suite).wasSuccessful() else 1


class Figures(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.top = Path(directory.name).resolve()

    def source(self, text: str) -> Source:
        return Source(self.write("one.rs", text))

    def write(self, name: str, text: str) -> Path:
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def crate(self, name: str, **files: str) -> None:
        self.write("Cargo.toml", '[workspace]\nmembers = ["crates/*"]\n')
        self.write(f"crates/{name}/Cargo.toml", f'[package]\nname = "{name}"\n')
        for file, text in files.items():
            self.write(f"crates/{name}/src/{file.replace('__', '/')}.rs", text)

    def test_comments_and_strings_are_told_apart(self):
        for text, kinds in {
            "/* a /* b */ c */ x": [COMMENT, "ident"],
            '"// no \\" comment" x': [LITERAL, "ident"],
            'r#"a " b"# x': [LITERAL, "ident"],
            'br##"a "# b"## x': [LITERAL, "ident"],
            "r#type": ["ident"],
            "'a' 'b '\\'' '\\u{1f600}'": [LITERAL, LITERAL, LITERAL, LITERAL],
            "/// a\n//// b\n/** c */": [DOC, COMMENT, DOC],
            "1..2": [LITERAL, "punct", LITERAL],
        }.items():
            self.assertEqual([token.kind for token in tokens(text)], kinds, text)

    def test_what_does_not_end_is_refused(self):
        for text in ("/* /* */", 'r#"a"'):
            with self.assertRaises(ValueError):
                tokens(text)
        with self.assertRaises(ValueError):
            self.source("fn f() { ( }")

    def test_lines_are_those_with_code(self):
        text = '//! Head.\n\nfn f() { // why\n    /* a\n    b */ g("a\n\n    b");\n}\n'
        self.assertEqual(self.source(text).code_lines, 4)

    def test_predicates_of_tests_cannot_hold_in_the_product(self):
        def words(predicate):
            return [token.text for token in tokens(predicate)]

        for predicate in ("test", 'feature = "rehearsal"', 'any(test, feature = "test-support")', "all(unix, test)", "not(not(test))"):
            self.assertEqual(outcomes(words(predicate)), {False}, predicate)
        for predicate in ("not(test)", 'any(test, feature = "libfuzzer")', 'feature = "libfuzzer"', 'not(feature = "libfuzzer")'):
            self.assertIn(True, outcomes(words(predicate)), predicate)

    def test_tests_are_taken_out_and_nothing_else(self):
        kept = (
            "use a::{B, c};",
            "struct S<A, B> { a: A, b: B }",
            "fn f() -> [u8; 4] { [0; 4] }",
            "const C: [u8; 2] = [1, 2];",
            "#[cfg(not(test))] fn g() {}",
            "impl S { fn h(&self) {} }",
        )
        tests = (
            "#[cfg(test)] use a::{B, c};",
            "#[cfg(test)] pub(crate) const C: S = S { a: 1 };",
            "#[test] #[ignore] fn f<A, B>(a: A, b: B) where A: X, B: Y { a(); }",
            '#[cfg(any(test, feature = "test-support"))] impl<A, B> S<A, B> { fn f() {} }',
            "#[tokio::test] async fn f() { }",
            "#[cfg(test)] mod tests;",
        )
        for item in kept:
            self.assertEqual(self.source(item).code_lines, 1, item)
        for item in tests:
            source = self.source(f"fn before() {{}}\n/// Sentence.\n{item}\nfn after() {{}}\n")
            self.assertEqual((source.code_lines, source.lines), (2, 2), item)
        source = self.source("struct S {\n    a: M<u8, u8>,\n    #[cfg(test)]\n    b: M<u8, u8>,\n    c: u8,\n}")
        self.assertEqual(source.code_lines, 4)
        self.assertEqual(self.source("#![cfg(test)]\nfn f() {}").code_lines, 0)

    def test_functions_are_measured_from_signature_to_brace(self):
        text = "#[inline]\npub const fn f(\n    a: [u8; { 2 }],\n) {\n    // why\n\n}\ntrait T { fn g(); }\ntype F = fn(u8);"
        self.assertEqual(list(self.source(text).functions()), [("f", 2, 6)])

    def test_public_items_want_a_sentence(self):
        text = """
/// Sentence.
#[derive(Debug)]
pub struct A { pub field: u8 }
#[derive(Debug)]
pub struct B;
pub(crate) fn c() {}
pub const fn d() {}
pub const E: u8 = 1;
impl A {
    pub fn f() {}
    /// Sentence.
    pub async fn g() {}
}
pub use a::b;
pub mod h;
"""
        self.assertEqual([name for name, _ in self.source(text).undocumented()], ["B", "d", "E", "f"])

    def test_files_that_name_each_other_are_a_circle(self):
        self.crate("low", lib="pub mod a;\npub mod b;\nuse a::A;\n", a="use crate::b::B;", b="fn f() -> super::a::A {}")
        self.crate("high", lib="mod c;\nmod d;\n", c="use low::a::A; use crate::d::{self, D};", d="use low::{a, b};")
        tree = Tree(self.top)
        self.assertEqual({name: len(files) for name, files in tree.crates.items()}, {"high": 3, "low": 3})
        names = [[path.name for path in part] for part in circles(tree)]
        self.assertEqual(names, [["a.rs", "b.rs"]])

    def test_a_module_and_its_parts_are_no_circle(self):
        self.crate("low", lib="mod a;", a="mod b;\nuse b::B;", a__b="use super::A; use crate::a;")
        self.assertEqual(circles(Tree(self.top)), [])

    def test_names_of_strangers_in_tests_lead_nowhere(self):
        self.crate("low", lib="mod a; mod b;", a="use crate::b::B; use std::fmt;", b="#[cfg(test)] mod tests { use crate::a::A; }")
        self.assertEqual(circles(Tree(self.top)), [])
