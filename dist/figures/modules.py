"""The modules of each crate as the compiler finds them: from `lib.rs`, `main.rs`, `build.rs` and the
programs that `Cargo.toml` names, along `mod`. Tests are not entered."""

import tomllib
from pathlib import Path

from source import Source
from tokens import IDENT

ROOTS = ("lib.rs", "main.rs", "mod.rs", "build.rs")


class Module:
    """A module, its children, and the paths that it names. `parent` is none for a crate's root."""

    def __init__(self, name: str, parent: "Module | None", path: Path):
        self.name, self.parent, self.path = name, parent, path
        self.crate: Module = parent.crate if parent else self
        self.children: dict[str, Module] = {}
        self.imports: dict[str, list[str]] = {}
        self.paths: list[list[str]] = []

    def with_ancestors(self):
        module = self
        while module:
            yield module
            module = module.parent


class Tree:
    """All production files below `top`: `sources` by path, `crates` with the files of each, `modules`,
    and the libraries' roots by name."""

    def __init__(self, top: Path):
        self.top = top
        self.sources: dict[Path, Source] = {}
        self.crates: dict[str, list[Path]] = {}
        self.modules: list[Module] = []
        self.libraries: dict[str, Module] = {}
        workspace = tomllib.loads((top / "Cargo.toml").read_text())["workspace"]
        for member in workspace["members"]:
            for manifest in sorted(top.glob(f"{member}/Cargo.toml")):
                self.read_crate(manifest.parent, tomllib.loads(manifest.read_text()))

    def read_crate(self, folder: Path, manifest: dict) -> None:
        """`lib.rs` and `main.rs` where cargo looks for them: a crate's folder is its name."""
        before = set(self.sources)
        programs = [program["path"] for program in manifest.get("bin", []) if "path" in program]
        for name in dict.fromkeys(["src/lib.rs", "src/main.rs", "build.rs", *programs]):
            root = folder / name
            if root.exists():
                module = self.read(root, Module(folder.name, None, root))
                if root.name == "lib.rs":
                    self.libraries[folder.name] = module
        self.crates[folder.name] = sorted(set(self.sources) - before)

    def add(self, parent: Module, name: str, directory: Path, attribute: str | None) -> None:
        """The child `mod name;`, unless its file is a test by its name."""
        near = [parent.path.parent / attribute] if attribute else []
        for path in [*near, directory / f"{name}.rs", directory / name / "mod.rs"]:
            path = path.resolve()
            if path.exists() and not is_test(path.relative_to(self.top)):
                parent.children[name] = self.read(path, Module(name, parent, path))
                return

    def read(self, path: Path, module: Module) -> Module:
        source = self.sources.setdefault(path, Source(path))
        self.modules.append(module)
        directory = path.parent if path.name in ROOTS else path.with_suffix("")
        Reader(source, self).read(module, 0, len(source.code), directory)
        return module


def is_test(path: Path) -> bool:
    return path.name == "tests.rs" or "tests" in path.parts[:-1]


class Reader:
    """Fills a module from its file. `tree` gives the files of its children."""

    def __init__(self, source: Source, tree: "Tree"):
        self.code, self.pairs, self.tree = source.code, source.pairs, tree

    def read(self, module: Module, index: int, end: int, directory: Path) -> None:
        while index < end:
            index = self.step(module, index, directory)

    def step(self, module: Module, index: int, directory: Path) -> int:
        """Takes what begins at `index`; gives the index behind it."""
        text, after = self.code[index].text, self.code[index + 1 : index + 2]
        if not after:
            return index + 1
        if text == "pub" and after[0].text == "(":
            return self.pairs[index + 1] + 1
        if text == "use" and self.begins_statement(index):
            return self.use(module, index + 1, [])
        if text == "mod" and after[0].kind == IDENT:
            return self.module(module, index, directory)
        if self.code[index].kind == IDENT and after[0].text == "::":
            return self.path(module, index)
        return index + 1

    def begins_statement(self, index: int) -> bool:
        return index == 0 or self.code[index - 1].text in (";", "{", "}", "]", "pub", ")")

    def module(self, module: Module, index: int, directory: Path) -> int:
        name = self.code[index + 1].text
        if self.code[index + 2].text == "{":
            child = module.children[name] = Module(name, module, module.path)
            end = self.pairs[index + 2]
            self.read(child, index + 3, end, directory / name)
            self.tree.modules.append(child)
            return end + 1
        self.tree.add(module, name, directory, self.path_attribute(index))
        return index + 3

    def path_attribute(self, index: int) -> str | None:
        """The file that `#[path = "…"]` above `mod` names."""
        above = [token.text for token in self.code[max(0, index - 10) : index]]
        while above and above[-1] not in (";", "{", "}"):
            if above[-5:-2] == ["[", "path", "="]:
                return above[-2].strip('"')
            above.pop()
        return None

    def use(self, module: Module, index: int, prefix: list[str]) -> int:
        """One tree of a `use`, up to the `;`, `,` or `}` that ends it."""
        names = list(prefix)
        while True:
            token = self.code[index]
            if token.text == "{":
                inner = index + 1
                while inner < self.pairs[index]:
                    inner = self.use(module, inner, names)
                    inner += self.code[inner].text == ","
                return self.pairs[index] + 1
            if token.text == "*":
                module.paths.append(names)
                return index + 1
            if token.text == "as":
                self.record(module, names, self.code[index + 1].text)
                return index + 2
            if token.text in (";", ",", "}"):
                self.record(module, names, names[-1])
                return index
            if token.kind == IDENT and not (token.text == "self" and names):
                names.append(token.text)
            index += 1

    def record(self, module: Module, names: list[str], as_name: str) -> None:
        module.imports[as_name] = names
        module.paths.append(names)

    def path(self, module: Module, index: int) -> int:
        names = [self.code[index].text]
        index += 1
        while self.code[index].text == "::" and self.code[index + 1].kind == IDENT:
            names.append(self.code[index + 1].text)
            index += 2
        module.paths.append(names)
        return index + (self.code[index].text == "::")
