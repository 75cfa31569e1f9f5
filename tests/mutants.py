"""Test the tests: change the code in one place at a time, and count the changes that the tests notice.

    python tests/mutants.py --count 100 --seed 0

A mutant is the package with one change: a comparison, an operator, a number, a condition or two arguments replaced, or a
statement removed. A seed draws the mutants, the same number from each area. Each one is tested in a copy of the project, by the
tests of its area, up to the first failure. A mutant that passes them has survived: sharpen a test, or, if no test could tell it
from the original, add it with the reason to equivalent_mutants.txt. The score is the share of the others that were killed.

Not mutated: strings, annotations and the text of messages; Triton's kernels and the code that launches them, whose tests in
Triton's interpreter take minutes per mutant, and whose block sizes change nothing but the speed.

mutmut leaves out decorated functions, here every objective, and cosmic-ray changes the checkout itself; neither draws a sample.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = Path("src/contrapose")
EQUIVALENT = Path(__file__).parent / "equivalent_mutants.txt"
OUTPUT = "pytest.log"
REQUIRED = 0.9  # of the mutants that are not equivalent
TIMEOUT = 900.0  # seconds of all tests of a mutant; the slowest ones take a third of that


@dataclass(frozen=True)
class Area:
    """Code to mutate, as patterns of files in the package, and the tests that must notice."""

    code: tuple[str, ...]
    tests: tuple[str, ...]
    slow_tests: tuple[str, ...] = ()  # for mutants that have passed the tests above
    left_out: tuple[str, ...] = ()  # beginnings of the names of files

    def stages(self, path: str) -> tuple[list[str], list[str]]:
        """Return the quick tests that are most likely to notice a change of a file, and the others."""
        files = [str(file.relative_to(ROOT)) for name in self.tests for file in _python_files(ROOT / name)]
        own = [file for file in files if Path(file).name == f"test_{Path(path).name}"]
        first = list(dict.fromkeys((*own, files[0])))
        return first, [file for file in dict.fromkeys(files) if file not in first]


def _python_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.py")) if path.is_dir() else [path]


# Tests in several processes, in Triton's interpreter, of memory and of other libraries take longer than all others together.
QUICK = "not several_processes and not kernels and not memory and not compiled and not sentence_transformers"
VALUES = "tests/promises/test_values.py"
LIMITS = ("tests/promises/test_no_negatives.py", "tests/promises/test_extremes.py", "tests/promises/test_identities.py")
AREAS = {
    "losses": Area(
        ("losses/*.py",),
        ("tests/losses/test_catalogue.py", VALUES, "tests/losses", "src/contrapose/losses"),
        ("tests/lab/training/test_graphed.py::test_other_schedules_are_not_held", "tests/lab/training/test_presets.py", *LIMITS),
    ),
    "pairs": Area(
        ("pairs/*.py",),
        ("tests/pairs/test_pairs.py", "tests/pairs", VALUES, "tests/losses/test_kinds.py", "tests/losses/test_supcon.py",
         "tests/losses/test_false_negatives.py", "src/contrapose/pairs"),
        (*LIMITS, "tests/promises/test_world_size.py::test_several_processes_equal_one"),
    ),
    "reduce": Area(
        ("reduce/*.py",),
        ("tests/reduce/test_blocks.py", "tests/reduce/test_cpu.py", "tests/reduce/test_unit.py", "tests/reduce/test_limits.py",
         "tests/reduce/test_groups.py", VALUES, "tests/metrics/test_metrics.py",
         "tests/promises/test_fast_paths.py"),
        ("tests/promises/test_derivatives.py::test_a_batch_of_gradients_is_right_or_refused", "tests/reduce/test_fused.py",
         "tests/reduce/test_blocks.py::test_memory_does_not_grow_with_the_square",
         "tests/promises/test_fast_paths.py::test_kernels_equal_the_dense_formula"),
        ("exponent", "hardware", "head_kernels", "kernel_", "unit_kernels"),
    ),
    "checkpoint": Area(
        ("lab/training/checkpoints/checkpoint.py", "lab/training/checkpoints/state.py"),
        ("tests/promises/test_checkpoints.py", "tests/lab/training/checkpoints/test_state.py", "tests/lab/training/test_damage.py",
         "tests/promises/test_durable_writes.py", "tests/promises/test_earlier_versions.py"),
    ),
}  # fmt: skip

Task = tuple[str, "Mutant | None"]  # area, and the mutant to test there; None: the code as it is
COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}


@dataclass(frozen=True, order=True)
class Mutant:
    """One change of a file: the bytes from `start` to `end` are replaced."""

    path: str  # within the package
    function: str
    start: int
    end: int
    replacement: bytes

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.replacement + source[self.end :]

    def difference(self, source: bytes) -> str:
        """Return the place and the lines before and after, without indentation, as in equivalent_mutants.txt."""
        first = source.rfind(b"\n", 0, self.start) + 1
        last = source.find(b"\n", self.end)
        before, after = source[first:last], source[first : self.start] + self.replacement + source[self.end : last]
        lines = (" ".join(text.decode().split()) for text in (before, after))
        return "{}: {}\n- {}\n+ {}".format(self.path, self.function, *lines)


class Mutator(ast.NodeVisitor):
    """Collects the mutants of a module."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.line_starts = [0, *(match.end() for match in re.finditer(b"\n", source))]
        self.names: list[str] = []
        self.mutants: list[Mutant] = []
        self.visit(ast.parse(source))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return the first byte of a node and the one after its last; columns of `ast` count bytes too."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.line_starts[node.lineno - 1] + node.col_offset
        return start, self.line_starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr) -> bytes:
        start, end = self.span(node)
        return self.source[start:end]

    def add(self, start: int, end: int, replacement: bytes) -> None:
        self.mutants.append(Mutant(self.path, ".".join(self.names) or "module", start, end, replacement))

    def replace_between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """Replace the operator between two operands; parentheses may stand beside it."""
        start = self.span(left)[1]
        at = self.source.index(old.encode(), start, self.span(right)[0])
        self.add(at, at + len(old), new.encode())

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        node.returns = None  # annotations are never evaluated
        self.visit_ClassDef(node)

    def visit_ClassDef(self, node: ast.ClassDef | ast.FunctionDef) -> None:
        self.names.append(node.name)
        self.generic_visit(node)
        self.names.pop()

    def visit_arg(self, node: ast.arg) -> None:
        """Skip annotations."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """Skip what is written for the type checker."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip what is shown in messages."""

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            self.replace_between(left, right, *COMPARISONS[type(operator)])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        # Operators of texts, paths and types fail at once, and would only raise the score.
        of_types = isinstance(node.op, ast.BitOr) and not self.names
        if type(node.op) in OPERATORS and not (of_types or _is_text(node.left) or _is_text(node.right)):
            self.replace_between(node.left, node.right, *OPERATORS[type(node.op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in pairwise(node.values):
            self.replace_between(left, right, old, new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        start = self.span(node)[0]
        self.add(start, start + len("not" if isinstance(node.op, ast.Not) else "-"), b"")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        start, end = self.span(node)
        if isinstance(node.value, bool):
            self.add(start, end, str(not node.value).encode())
        elif isinstance(node.value, int):
            self.add(start, end, str(node.value + 1).encode())
        elif isinstance(node.value, float):
            self.add(start, end, str(node.value * 2 or 1.0).encode())

    def negate(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):  # those have mutants of their own
            start, end = self.span(test)
            self.add(start, end, b"not (" + self.source[start:end] + b")")

    def visit_If(self, node: ast.If) -> None:
        self.negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.negate(node.test)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        for left, right in pairwise([] if name in ("isinstance", "max", "min") else node.args):
            starred = isinstance(left, ast.Starred) or isinstance(right, ast.Starred)
            if not starred and _is_text(left) == _is_text(right):
                (start, middle), (other, end) = self.span(left), self.span(right)
                swapped = self.text(right) + self.source[middle:other] + self.text(left)
                if swapped != self.source[start:end]:
                    self.add(start, end, swapped)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.add(*self.span(node), b"pass")
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add(*self.span(node), b"pass")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add(*self.span(node), b"pass")  # and its message is left as it is


def _is_text(node: ast.expr) -> bool:
    """Return whether an expression is a text, or None."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | None))


def mutants_of(area: Area) -> Iterator[Mutant]:
    """Yield all mutants of an area."""
    package = ROOT / PACKAGE
    for file in sorted(path for pattern in area.code for path in package.glob(pattern)):
        if not file.name.startswith(area.left_out):
            yield from Mutator(str(file.relative_to(package)), file.read_bytes()).mutants


def read_equivalent(text: str) -> dict[str, str]:
    """Return the reasons of the mutants that are known to be equivalent, or to need a GPU, by their difference."""
    blocks = [block.splitlines() for block in text.split("\n\n") if not block.startswith("##")]
    return {"\n".join(lines[1:]): lines[0].removeprefix("# ") for lines in blocks if lines}


class Copy:
    """A copy of the project, in which mutants are tested."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("src", "tests", "docs", "pyproject.toml", "README.md"):
            source, target = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)

    def passes(self, tests: Sequence[str], marks: str, selection: str = QUICK) -> bool:
        """Run tests up to the first failure; return whether all of them pass."""
        if not tests:
            return True
        # Forked: the packages that this process has imported need not be imported again.
        process = get_context("fork").Process(target=_run_tests, args=(self.folder, tests, selection, marks))
        process.start()
        process.join(TIMEOUT)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutError
        return process.exitcode in (0, 5)  # 5: none of the tests is quick

    def test(self, mutant: Mutant | None, area: Area, marks: str) -> str:
        """Apply a mutant while its tests run; return "survived", "killed" or "timeout". None is the code as it is."""
        path = self.folder / PACKAGE / (mutant.path if mutant else "__init__.py")
        source = path.read_bytes()
        path.write_bytes(mutant.applied(source) if mutant else source)
        try:
            quick = all(self.passes(tests, marks) for tests in area.stages(mutant.path if mutant else ""))
            return "survived" if quick and self.passes(area.slow_tests, marks, selection="") else "killed"
        except TimeoutError:
            return "timeout"
        finally:
            path.write_bytes(source)


def _run_tests(folder: Path, tests: Sequence[str], selection: str, marks: str) -> None:
    """Run tests of a copy in this process, which ends with pytest's exit status; the output goes to a file."""
    import pytest

    own = [str(folder / "src"), str(folder / "tests")]
    sys.path[:] = [*own, *(path for path in sys.path if not path.startswith(str(ROOT / "tests")))]
    os.environ["PYTHONPATH"] = os.pathsep.join(own)
    # A mutant of the same size, written in the same second, would be taken for the one before.
    sys.dont_write_bytecode, os.environ["PYTHONDONTWRITEBYTECODE"] = True, "1"
    os.chdir(folder)
    with Path(OUTPUT).open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    options = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-k", selection, "-m", marks]
    os._exit(pytest.main([*options, *tests]))


def run(names: Sequence[str], options: argparse.Namespace) -> float:
    """Test the same number of mutants from each area, in several processes; print the survivors and return the score."""
    listed, tasks = read_equivalent(EQUIVALENT.read_text()), list[Task]()
    for name in names:
        mutants = sorted(mutants_of(AREAS[name]))
        random.Random(options.seed).shuffle(mutants)  # a larger count then extends a smaller one
        drawn = mutants[: options.count // len(names)]
        print(f"{name}: {len(drawn)} of {len(mutants)} mutants", flush=True)
        chosen = [mutant for mutant in drawn if options.containing in difference_of(mutant)]
        # First the code as it is: tests that fail without a mutant would count as having noticed each of them.
        tasks += [(name, mutant) for mutant in (*([] if options.containing else [None]), *chosen)]
    counts = {name: Counter[str]() for name in names}
    for name, mutant, outcome, output in _outcomes(tasks, listed, options):
        if mutant is None:
            if outcome != "survived":
                raise RuntimeError(f"{name}: a test fails without a mutant: {output}")
            continue
        counts[name][outcome] += 1
        difference = difference_of(mutant)
        print(f"{outcome:10} {difference if outcome == 'survived' else difference.splitlines()[0]}", flush=True)
    for name in names:
        print(f"{name}: {_counts(counts[name])}")
    total = sum(counts.values(), Counter[str]())
    print(f"all: {_counts(total)} (seed {options.seed})")
    return _score(total)


def difference_of(mutant: Mutant) -> str:
    """Return the place of a mutant and the lines before and after."""
    return mutant.difference((ROOT / PACKAGE / mutant.path).read_bytes())


def _outcomes(
    tasks: Sequence[Task], listed: Mapping[str, str], options: argparse.Namespace
) -> Iterator[tuple[str, Mutant | None, str, str]]:
    """Yield each task, its outcome and the end of pytest's output, as they come from processes with a copy each."""
    context = get_context("fork")
    waiting, done = context.SimpleQueue(), context.SimpleQueue()
    for number in [*range(len(tasks)), *[None] * options.jobs]:
        waiting.put(number)

    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            copy = Copy(Path(folder))
            while (number := waiting.get()) is not None:
                name, mutant = tasks[number]
                reason = listed.get(difference_of(mutant), "") if mutant else ""
                known = ("gpu" if reason.startswith("GPU") else "equivalent") if reason else ""
                outcome = known or copy.test(mutant, AREAS[name], options.marks)
                log = copy.folder / OUTPUT
                done.put((number, outcome, log.read_text()[-3000:] if log.exists() else ""))

    workers = [context.Process(target=work) for _ in range(options.jobs)]
    for worker in workers:
        worker.start()
    try:
        for _ in tasks:
            number, outcome, output = done.get()
            yield *tasks[number], outcome, output
    finally:
        for worker in workers:
            worker.terminate()


def _score(outcomes: Counter[str]) -> float:
    """Return the share of mutants that are not equivalent and were killed; one that hangs is noticed too."""
    killed = outcomes["killed"] + outcomes["timeout"]
    return killed / max(killed + outcomes["survived"], 1)


def _counts(outcomes: Counter[str]) -> str:
    kinds = ", ".join(f"{outcomes[kind]} {kind}" for kind in ("killed", "timeout", "survived", "equivalent", "gpu"))
    return f"{kinds}: {100 * _score(outcomes):.1f} %"


def main() -> int:
    """Print what survives, and the score; return 1 if it is too low."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="mutants to draw, in all areas together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--areas", nargs="+", choices=AREAS, default=list(AREAS))
    parser.add_argument("--jobs", type=int, default=2, help="mutants that are tested at the same time")
    parser.add_argument(
        "--marks",
        default="not slow",
        help="which tests: 'not slow' are those of make test-all, 'not slow and not thorough' those of make test",
    )
    parser.add_argument("--containing", default="", help="test only the drawn mutants whose difference has this text")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for package in ("torch", "torchvision", "pytest"):
        import_module(package)
    return 0 if run(options.areas, options) >= REQUIRED else 1


if __name__ == "__main__":
    sys.exit(main())
