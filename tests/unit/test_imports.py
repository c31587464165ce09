"""Who may import whom. The edges are read from the source; imports under TYPE_CHECKING reach protocols only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sssd

ROOT = Path(sssd.__file__).parent
BASE = {"types", "errors", "architecture", "plan", "spec", "config"}
PURE = BASE | {"tree", "sampling", "verify"}
ALLOWED = {
    "types": {"config"},
    "errors": set(),
    "architecture": BASE,
    "plan": {"errors"},
    "spec": BASE,
    "config": BASE,
    "constraint": BASE,
    "tree": PURE,
    "sampling": PURE,
    "verify": PURE,
    "drafting": PURE | {"drafting", "_core"},
    "engines": PURE | {"engines"},
    "runtime": PURE | {"runtime"},
    "grammar": PURE | {"constraint"},
    "text": PURE,
    "answer": PURE | {"runtime", "text"},
    "model": PURE | {"drafting", "engines", "runtime", "text", "answer", "constraint", "grammar"},
    "llm": PURE | {"drafting", "engines", "runtime", "text", "answer", "model", "constraint"},
    # parity runs a graph through the engines; nothing else of export knows them
    "draft_models": PURE | {"drafting", "engines", "text"},
    "loading": PURE | {"drafting", "engines", "runtime", "text", "model", "llm", "draft_models"},
    "export": PURE | {"export", "engines", "text"},
    "bench": PURE
    | {"drafting", "engines", "runtime", "text", "answer", "model", "llm", "loading", "draft_models", "bench"},
    "server": PURE | {"constraint", "drafting", "runtime", "text", "answer", "model", "server", "__init__"},
    "doctor": PURE | {"bench", "engines", "doctor"},
    "commands": None,  # everything
    "cli": None,
    "__init__": PURE | {"answer", "constraint", "llm", "loading", "text", "export"},
}
HEAVY = {
    "torch",
    "llguidance",
    "onnx",
    "onnxruntime",
    "tensorrt",
    "tensorrt_rtx",
    "transformers",
    "tokenizers",
    "gguf",
    "pydivsufsort",
    "fastapi",
    "uvicorn",
}


def part_of(module: str) -> str | None:
    names = module.split(".")
    return (names[1] if len(names) > 1 else "__init__") if names[0] == "sssd" else None


class Imports(ast.NodeVisitor):
    """Parts imported by a file: at run time, and for type checking only."""

    def __init__(self) -> None:
        self.run_time: set[str] = set()
        self.typing: set[str] = set()
        self._into = self.run_time

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            self._into = self.typing
        self.generic_visit(node)
        self._into = self.run_time

    def visit_Import(self, node: ast.Import) -> None:
        self._into.update(alias.name for alias in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module == "sssd":
            self._into.update(f"sssd.{alias.name}" for alias in node.names)
        else:
            self._into.add(node.module or "")


def edges() -> list[tuple[str, str, bool]]:
    """(part, imported module, for type checking only) over the package."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        imports = Imports()
        imports.visit(ast.parse(path.read_text("utf-8")))
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        found += [(part, m, False) for m in imports.run_time] + [(part, m, True) for m in imports.typing]
    return found


def test_every_part_imports_what_it_may_and_nothing_else() -> None:
    wrong = []
    for part, module, typing_only in edges():
        target = part_of(module)
        allowed = ALLOWED[part]
        if target is None or allowed is None or target in allowed:
            continue
        if typing_only and (module.endswith(".base") or part == "__init__"):
            continue
        wrong.append(f"{part} imports {module}")
    assert wrong == []


def test_the_checker_sees_imports() -> None:
    assert ("llm", "sssd.text", False) in edges()
    assert ("runtime", "sssd.engines.base", True) in edges()


@pytest.mark.parametrize(
    "statement", ["import sssd", "import sssd.types, sssd.spec, sssd.tree, sssd.verify", "import sssd.cli"]
)
def test_importing_loads_nothing_heavy(statement: str) -> None:
    code = f"import sys; {statement}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_public_names_are_sorted_and_there() -> None:
    names = sssd.__all__
    assert names == sorted(names, key=lambda n: (not n.isupper(), n))
    assert all(getattr(sssd, name).__module__.startswith("sssd") for name in names)
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        sssd.laod  # noqa: B018
