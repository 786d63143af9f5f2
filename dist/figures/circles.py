"""Which production file names whose items, and the circles among them: sets of files of which each
leads to each other. A path leads to the last module in it, as it is written: what that module passes
on from another is its own. A module and what it is made of are no circle: what a file names of the
modules that it lies in does not count. What only methods reach is not seen."""

from collections import defaultdict
from pathlib import Path

from modules import Module, Tree


def circles(tree: Tree) -> list[list[Path]]:
    """Those of more than one file, largest first."""
    edges = defaultdict(set)
    for module in tree.modules:
        around = {above.path for above in module.with_ancestors()}
        for names in module.paths:
            target = resolve(tree, module, names)
            if target and target.path not in around:
                edges[module.path].add(target.path)
    found = [sorted(part) for part in components(edges) if len(part) > 1]
    return sorted(found, key=lambda part: (-len(part), part))


def resolve(tree: Tree, module: Module, names: list[str]) -> Module | None:
    """The last module that `names` leads through from `module`; none for what is not ours."""
    at = first(tree, module, names)
    for name in names[1:]:
        after = at and (at.parent if name == "super" else at.children.get(name))
        if not after:
            break
        at = after
    return at


def first(tree: Tree, module: Module, names: list[str]) -> Module | None:
    name = names[0]
    if name in ("crate", "self", "super"):
        return {"crate": module.crate, "self": module, "super": module.parent}[name]
    if name in module.children:
        return module.children[name]
    imported = module.imports.get(name)
    if imported and imported[0] != name and imported != names:
        origin = resolve(tree, module, imported)
        return origin if origin and origin.name == imported[-1] else None
    return tree.libraries.get(name)


def components(edges: dict[Path, set[Path]]) -> list[list[Path]]:
    """Strongly connected components by Tarjan's algorithm, without recursion."""
    order: dict[Path, int] = {}
    low: dict[Path, int] = {}
    stack, result = [], []
    for root in sorted(edges):
        if root in order:
            continue
        work = [(root, iter(sorted(edges[root])))]
        order[root] = low[root] = len(order)
        stack.append(root)
        while work:
            node, targets = work[-1]
            target = next(targets, None)
            if target is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    cut = stack.index(node)
                    result.append(stack[cut:])
                    del stack[cut:]
            elif target not in order:
                order[target] = low[target] = len(order)
                stack.append(target)
                work.append((target, iter(sorted(edges.get(target, ())))))
            elif target in stack:
                low[node] = min(low[node], order[target])
    return result
