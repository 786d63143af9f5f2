"""Figures of the code: lines of production Rust for each crate, circles of files, what is too long,
and what `pub` offers without a sentence. `make figures` calls it; `dist/figures DIRECTORY` counts
another checkout, `--self-test` counts examples with known figures.

Lines are those with code: no blanks, no comments, no tests (`tests.rs`, `tests/`, what is behind
`cfg(test)` or a feature that only tests turn on)."""

import argparse
import signal
import sys
from pathlib import Path

import self_test
from circles import circles
from modules import Tree

INSTRUMENTS = {"traffic", "lab", "fuzz"}
LONGEST_FUNCTION = 81
LONGEST_FILE = 500


def main() -> int:
    parser = argparse.ArgumentParser(prog="dist/figures", description="Figures of the code.")
    parser.add_argument("directory", nargs="?", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--circles", action="store_true", help="name the files of every circle, not of the largest alone")
    parser.add_argument("--self-test", action="store_true", help="count examples with known figures")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test.run()
    tree = Tree(arguments.directory.resolve())
    print_lines(tree)
    print_circles(tree, arguments.circles)
    print_lengths(tree)
    print_undocumented(tree)
    return 0


def print_lines(tree: Tree) -> None:
    print("Code lines of production Rust")
    total = 0
    for wing, is_instrument in ("the relay", False), ("its instruments", True):
        lines = {
            name: sum(tree.sources[path].code_lines for path in paths)
            for name, paths in tree.crates.items()
            if (name in INSTRUMENTS or "instruments" in folder(tree, paths)) == is_instrument
        }
        for name, count in sorted(lines.items()):
            print(f"  {name:<16} {count:>7}")
        print(f"  {wing:<16} {sum(lines.values()):>7}\n")
        total += sum(lines.values())
    print(f"  {'all':<16} {total:>7}\n")


def folder(tree: Tree, paths: list[Path]) -> tuple[str, ...]:
    return paths[0].relative_to(tree.top).parts if paths else ()


def print_circles(tree: Tree, all_of_them: bool) -> None:
    found = circles(tree)
    sizes = " ".join(str(len(part)) for part in found)
    print(f"Circles of files: {len(found)}, of {sizes or 'none'}")
    for part in found if all_of_them else found[:1]:
        for path in part:
            print(f"  {path.relative_to(tree.top)}")
        print()


def print_lengths(tree: Tree) -> None:
    functions = [
        (length, path, line, name)
        for path, source in tree.sources.items()
        for name, line, length in source.functions()
        if length > LONGEST_FUNCTION
    ]
    print(f"Functions above {LONGEST_FUNCTION} lines: {len(functions)}")
    for length, path, line, name in sorted(functions, reverse=True):
        print(f"  {length:>4} {name} ({path.relative_to(tree.top)}:{line})")
    files = [(source.lines, path) for path, source in tree.sources.items() if source.lines > LONGEST_FILE]
    print(f"\nFiles above {LONGEST_FILE} lines: {len(files)}")
    for length, path in sorted(files, reverse=True):
        print(f"  {length:>4} {path.relative_to(tree.top)}")
    print()


def print_undocumented(tree: Tree) -> None:
    found = [
        (path.relative_to(tree.top), line, name)
        for path, source in sorted(tree.sources.items())
        for name, line in source.undocumented()
    ]
    print(f"Public items without a sentence: {len(found)}")
    for path, line, name in found:
        print(f"  {name} ({path}:{line})")


if __name__ == "__main__":
    # Ends in silence where nobody reads on, as in a pipe to head.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
