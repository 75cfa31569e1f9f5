"""Sphinx configuration of the site; `make docs` builds it with `build.py`."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx_gallery.sorting import ExplicitOrder

import contrapose

project = "contrapose"
author = project_copyright = "the contrapose authors"
release = version = contrapose.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinx_design", "sphinx_gallery.gen_gallery"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
default_role = "py:obj"  # `name` in a docstring links to the name
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True  # a function by its name, without the address at which it lies
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"contrapose {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"  # browsers draw MathML themselves, so pages need no script from another host
html_copy_source = False
# Notebooks are stored without results, and run in a temporary folder.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True
# In the order of the page
GALLERY = [
    "simclr_loop.py", "moco_queue.py", "supcon_labels.py", "clip_two_towers.py", "siglip_sigmoid.py", "hard_negatives.py",
    "large_batch_gradcache.py", "own_temperature.py", "own_objective.py", "several_gpus.py", "sentence_embeddings.py",
    "compare_losses.py",
]  # fmt: skip
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "ignore_pattern": r"race\.py$",  # needs a GPU and CIFAR-10
    "within_subsection_order": ExplicitOrder(GALLERY),
    "abort_on_example_error": True,
    "capture_repr": (),
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
    "min_reported_time": 10_000,  # seconds: no "total running time", which depends on the machine
    "image_srcset": ["2x"],
    "notebook_extensions": set(),  # they would be pages, and several_gpus.py starts itself as a script
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Docstrings list arguments as "name   description"; further lines of a description start in the same column.
_ARGUMENT = re.compile(r"(?P<name>[\\*]*[a-z_][\w, *\\]*?)(?P<gap> {2,})(?P<text>\S.*)")


def describe_arguments(
    app: Sphinx, what: str, name: str, obj: object, options: dict[str, Any], lines: list[str]
) -> None:
    """Turn the arguments in a docstring into fields, and escape what is markup elsewhere, in place."""
    result: list[str] = []
    column, is_example = 0, False
    for line in lines:
        is_example = line.lstrip().startswith(">>>") or (is_example and bool(line.strip()))
        line = line if is_example else _escape(line)
        found = _ARGUMENT.fullmatch(line)
        if found is not None:
            column = found.end("gap")
            result += [] if not result or result[-1].startswith(":param") or not result[-1] else [""]
            # Without spaces: in ":param a, b:" Sphinx would take "a," for the type of b.
            names = re.sub(r"[*\\ ]", "", found["name"])
            result.append(f":param {names}: {found['text']}")
        elif column and line.startswith(" " * column) and line.strip():
            result[-1] += f" {line.strip()}"
        else:
            if column and line.strip():
                result.append("")
            column = 0
            result.append(line)
    lines[:] = result


def _escape(line: str) -> str:
    """Escape bars and asterisks outside of code: |Δs| is an absolute value."""
    parts = line.split("`")
    parts[::2] = [re.sub(r"([|*])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def to_mathml(formula: str, *, display: str) -> str:
    """Convert LaTeX to MathML; raise ValueError if a command is unknown."""
    # The converter knows align and not aligned, which looks the same in a formula of its own.
    result = convert(formula.replace("{aligned}", "{align}"), display=display)
    if "\\" in result or "<mi>&</mi>" in result:
        raise ValueError(f"a formula has a command that cannot be converted to MathML: {formula}")
    return result


def visit_inline_math(self: Any, node: nodes.Element) -> None:
    """Write a formula in a line as MathML."""
    self.body.append(to_mathml(node.astext(), display="inline"))
    raise nodes.SkipNode


def visit_math_block(self: Any, node: nodes.Element) -> None:
    """Write a formula of its own as MathML."""
    self.body.append(f'<div class="formula">{to_mathml(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Register the conversion of docstrings and formulas."""
    app.connect("autodoc-process-docstring", describe_arguments)
    app.add_html_math_renderer("mathml", (visit_inline_math, None), (visit_math_block, None))
