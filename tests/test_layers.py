"""The direction of imports (docs/architecture.md): read from the sources, not from running them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("app", "analyzer", "engine", "traces")


def modules(*folders: str) -> list[Path]:
    found = []
    for folder in folders:
        path = ROOT / folder
        found += [path] if path.is_file() else sorted(path.rglob("*.py"))
    assert found, f"no module under {folders}"
    return found


def imported(path: Path) -> set[str]:
    """Full dotted names of everything that a module imports, at any depth."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported_at_once(path: Path) -> set[str]:
    """What a module imports when it is imported itself: not what its functions do, nor for types alone."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    now = [n for n in body if isinstance(n, ast.Import | ast.ImportFrom)]
    return {
        name
        for node in now
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
        )
    }


def is_command(path: Path) -> bool:
    """Whether the module is a command line's, which may bring engine and analyzer together."""
    return path.name.endswith("_command.py")


def roots(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported(path)}


@pytest.mark.parametrize("path", modules("traces"), ids=str)
def test_traces_imports_no_other_room(path: Path) -> None:
    assert not roots(path) & {"analyzer", "engine", "app"}


@pytest.mark.parametrize("path", modules("engine"), ids=str)
def test_engine_imports_only_traces(path: Path) -> None:
    allowed = {"analyzer"} if is_command(path) else set()
    assert not roots(path) & ({"analyzer", "app"} - allowed)


@pytest.mark.parametrize("path", modules("analyzer"), ids=str)
def test_only_pages_and_commands_bring_engine_and_analyzer_together(path: Path) -> None:
    if "pages" not in path.relative_to(ROOT).parts and not is_command(path):
        assert not roots(path) & {"engine", "app"}


@pytest.mark.parametrize("path", modules("analyzer", "engine"), ids=str)
def test_commands_import_the_other_room_only_inside_functions(path: Path) -> None:
    if is_command(path):
        other = "engine" if "analyzer" in path.relative_to(ROOT).parts else "analyzer"
        assert other not in {name.split(".")[0] for name in imported_at_once(path)}


@pytest.mark.parametrize("path", modules(*ROOMS[1:]), ids=str)
def test_only_the_page_imports_streamlit(path: Path) -> None:
    if "pages" not in path.relative_to(ROOT).parts:
        assert "streamlit" not in roots(path)


@pytest.mark.parametrize("path", modules("app.py", "analyzer", "engine", "traces"), ids=str)
def test_only_the_torch_engine_imports_torch(path: Path) -> None:
    if path.relative_to(ROOT).parts[:2] != ("engine", "gpu"):
        assert not roots(path) & {"torch", "triton"}


@pytest.mark.parametrize("path", modules("analyzer/figures.py"), ids=str)
def test_figures_compute_nothing_with_tables_of_their_own(path: Path) -> None:
    assert not roots(path) & {"engine", "streamlit", "pyarrow"}


@pytest.mark.parametrize(
    "statement",
    [
        "import app; [app.page_of(module) for *_, module in app.PAGES]",
        "import analyzer.pages.compare",
        "import engine.__main__",
        "import traces.open",
    ],
)
def test_opening_imports_no_torch_and_no_compiler(statement: str) -> None:
    heavy = ("torch", "numba", "ray")
    code = f"{statement}; import sys; print([m for m in {heavy!r} if m in sys.modules])"

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip().splitlines()[-1] == "[]"
