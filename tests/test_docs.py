"""The site: what its build refuses, what its Markdown becomes, and that shell blocks name what there is.

The Python blocks of the pages run in tests/test_package.py.
"""

import ast
import csv
import importlib.util
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from docs.figures import draw_fit_error
from docs.tools import build, docstrings, mathml
from markdown import markdown

import torchdcls
from torchdcls.training import cli, compare
from torchdcls.training.devices import check_batch
from torchdcls.training.recipe import change, load_recipe, variants
from torchdcls.training.train import recipe_words

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


PACKAGE = '''"""A package."""

__all__ = ["right"]


def right(it: int) -> int:
    """Return it.

    >>> right(1)
    1
    """
    return it
'''


@pytest.fixture
def site(tmp_path):
    """A site of two pages, built with the project's own settings."""
    settings = (ROOT / "zensical.toml").read_text()
    settings = re.sub(r"^nav = \[.*?^\]", 'nav = ["index.md", { "More" = ["api.md"] }]', settings, flags=re.M | re.S)
    (tmp_path / "zensical.toml").write_text(settings)
    (tmp_path / "docs").mkdir()
    shutil.copytree(ROOT / "docs" / "tools", tmp_path / "docs" / "tools")
    (tmp_path / "src" / "torchdcls").mkdir(parents=True)
    (tmp_path / "src" / "torchdcls" / "__init__.py").write_text(PACKAGE)
    shutil.copy(ROOT / "docs" / "style.css", tmp_path / "docs")
    (tmp_path / "docs" / "index.md").write_text("# Start\n\n[More](api.md) of $x_1$.\n")
    (tmp_path / "docs" / "api.md").write_text("# API\n\n::: torchdcls.right\n")
    return tmp_path


def test_a_sound_site_is_built(site):
    assert list(build.problems(site)) == []
    page = (site / "site" / "index.html").read_text()
    assert "<msub>" in page
    assert "&gt;&gt;&gt; " in (site / "site" / "api.html").read_text()
    assert (site / "site" / "stix-two-math.woff").read_bytes().startswith(b"wOFF")
    assert not list((site / "site").rglob("*.py"))


MISNAMED = '''
def misnamed(right: int) -> int:
    """Return it.

    Args:
        wrong: not there.
    """
    return right
'''


def add(site, file, text):
    with (site / file).open("a") as page:
        page.write(f"\n{text}\n")


# Builds take a second each, so that what can go wrong at once does.
WRONG = {
    "links": (
        {"docs/index.md": "[gone](gone.md)\n[gone](api.md#gone)\n[gone][torchdcls.gone]"},
        ["page does not exist", "anchor does not exist", r"torchdcls\.gone"],
    ),
    "identifier": ({"docs/api.md": "::: torchdcls.gone"}, ["torchdcls.gone could not be found"]),
    "maths": ({"docs/index.md": r"$$\nonsense{x}$$"}, [r"maths must be of commands .*got \\nonsense"]),
    "from elsewhere, and half shown": (
        {
            "docs/index.md": '<img src="https://example.org/x.png"><script src="//example.org/x.js"></script>',
            "docs/api.md": "| a | b |\n|---|---|\n| $\\left|x\\right|$ | c |",
            "docs/style.css": "@import url(https://example.org/x.css);",
        },
        [
            r"index\.html must load nothing from elsewhere, got <img",
            r"index\.html must load nothing from elsewhere, got <script",
            r"style\.css must load nothing from elsewhere, got url",
            r"api\.html must show maths, got .*left",
        ],
    ),
    "what strict mode lets pass": (
        {
            "docs/other.md": "# Other",
            "docs/api.md": "::: torchdcls.misnamed",
            "src/torchdcls/__init__.py": MISNAMED,
            "zensical.toml": "",
        },
        [
            "docs/other.md must be in the navigation",
            "the navigation names docs/gone.md, which is not there",
            "'wrong' does not appear in the function signature",
        ],
    ),
}


@pytest.mark.parametrize(("texts", "messages"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_a_site_stops_it(site, texts, messages):
    for file, text in texts.items():
        add(site, file, text)
    if "zensical.toml" in texts:
        settings = site / "zensical.toml"
        settings.write_text(settings.read_text().replace('["api.md"]', '["api.md", "gone.md"]'))
    found = "\n".join(build.problems(site))
    for message in messages:
        assert re.search(message, found), found


def rendered(text):
    extensions = ["fenced_code", "tables", mathml.makeExtension(), docstrings.makeExtension()]
    return markdown(text, extensions=extensions)


def test_maths_becomes_mathml():
    inline = rendered(r"where $\sigma_0 < 1$ holds")
    assert inline.startswith("<p>where <math")
    assert "<msub><mi>&#x003C3;</mi><mn>0</mn></msub>" in inline
    block = rendered("$$\n\\sum_{k=1}^{m} w_k\n$$")
    assert block.startswith('<div class="equation"><math')
    assert "<munderover>" in block
    assert 'display="block"' in block
    assert mathml.to_mathml(r"\lvert x\rvert", "inline") == mathml.to_mathml(r"\left| x\right|", "inline")
    assert rendered("| a | $b_1$ |\n|---|---|\n| $*c*$ | d |").count("<math") == 2


@pytest.mark.parametrize("text", ["from $5 to $6", "`$x$`", r"\$x\$", "```\n$x$\n```", "$ x $", "US$x$y"])
def test_dollars_that_are_no_maths_stay(text):
    assert "<math" not in rendered(text)


def test_doctests_are_shown_as_code():
    page = rendered(
        "Text.\n\n>>> f(1)\n2\n>>> f(\n...     2)\n3\n\nMore :func:`fuse`.\n\n```python\n>>> untouched\n```"
    )
    assert page.count("<pre>") == 2
    assert "&gt;&gt;&gt; f(1)\n2\n&gt;&gt;&gt; f(\n...     2)\n3" in page
    assert "&gt;&gt;&gt; untouched" in page
    assert "blockquote" not in page


def test_roles_become_links_to_public_names():
    lines = {
        ":func:`fuse`": "[<code>fuse</code>][torchdcls.fuse]",
        ":class:`~torchdcls.Interpolation`": "[<code>Interpolation</code>][torchdcls.Interpolation]",
        ":func:`parameter_groups`": "[<code>parameter_groups</code>][torchdcls.parameter_groups.parameter_groups]",
        ":class:`torch.nn.Conv2d`": "<code>torch.nn.Conv2d</code>",
        ":class:`~torch.nn.Conv2d`": "<code>Conv2d</code>",
        ":func:`combine`": "<code>combine</code>",
    }
    for written, shown in lines.items():
        assert rendered(written) == f"<p>{shown}</p>"


def test_public_names_are_read_as_they_are():
    assert docstrings.public_names() == torchdcls.__all__


def test_the_reference_has_every_public_name():
    documented = set(re.findall(r"^::: torchdcls\.(.+)$", (ROOT / "docs" / "api.md").read_text(), flags=re.M))
    modules = {path.stem for path in (ROOT / "src" / "torchdcls").iterdir()}
    public = {f"{name}.{name}" if name in modules else name for name in torchdcls.__all__ if name != "__version__"}
    assert public <= documented


SHELL = re.compile(r"^```(?:bash|sh|shell|console)\n(.*?)^```", flags=re.M | re.S)


def commands():
    """Every line of every shell block, with its page."""
    for page in PAGES:
        for block in SHELL.findall(page.read_text()):
            joined = re.sub(r"\\\n\s*", " ", block)
            for line in joined.splitlines():
                words = shlex.split(line.removeprefix("$ "), comments=True)
                while words and re.fullmatch(r"\w+=.*", words[0]):  # settings for one command
                    words = words[1:]
                if words:
                    yield page.name, words


def test_shell_blocks_parse():
    for page in PAGES:
        for block in SHELL.findall(page.read_text()):
            subprocess.run(["bash", "-n"], input=block, text=True, check=True)


@pytest.mark.parametrize(
    ("page", "words"), list(commands()), ids=lambda part: part if isinstance(part, str) else part[0]
)
def test_shell_blocks_name_what_there_is(page, words):
    program, *arguments = words
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
        assert {a for a in arguments if not a.startswith("-") and "=" not in a} <= set(targets)
    elif program == "python" and arguments[0] == "-m":
        assert module_is_there(arguments[1]), f"{page}: {' '.join(words)}"
    elif program == "python" and "/" in arguments[0]:
        assert (ROOT / arguments[0]).exists(), f"{page}: {' '.join(words)}"
    elif program == "pip":
        extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), flags=re.M)
        for extra in re.findall(r"\[([\w,]+)\]", " ".join(arguments)):
            assert set(extra.split(",")) <= set(extras), f"{page}: {' '.join(words)}"


def training_commands():
    """What torchdcls is told to do on the pages, whatever starts it."""
    for page, words in commands():
        if "torchdcls" in words:
            command, *arguments = words[words.index("torchdcls") + 1 :]
            yield pytest.param(command, arguments, id=f"{page}-{' '.join([command, *arguments])[:60]}")


@pytest.mark.parametrize(("command", "words"), list(training_commands()))
def test_commands_on_the_pages_are_such_as_can_be_given(command, words, tmp_path):
    words = [word.replace("$SLURM_ARRAY_TASK_ID", "1") for word in words]
    _, arguments = cli.parse(command, words)
    if command == "train":
        recipe = load_recipe(arguments.recipe, recipe_words(arguments), arguments.variant)
        check_batch(recipe, recipe.machine.devices)
    elif command == "compare":
        jobs = compare.plan(tmp_path, arguments.recipes, arguments.variants, arguments.seeds, arguments.overrides)
        assert len(jobs) >= len(arguments.seeds) * len(arguments.recipes)
    elif command == "evaluate":
        change(load_recipe("digits"), recipe_words(arguments))


YAML = re.compile(r"^```yaml\n(.*?)^```", flags=re.M | re.S)


@pytest.mark.parametrize("page", ["training.md", "compare.md"])
def test_recipes_on_the_pages_load(page, tmp_path):
    (block,) = YAML.findall((ROOT / "docs" / page).read_text())
    rest = "" if "model:" in block else "model: {name: convnext_atto}\ndata: {root: images}\n"
    (tmp_path / "recipe.yaml").write_text(block + rest)
    found = variants(tmp_path / "recipe.yaml")
    assert len(found) == 2
    for variant in found:
        recipe = load_recipe(tmp_path / "recipe.yaml", variant=variant)
        assert recipe.variant == variant
        check_batch(recipe, 1)


def module_is_there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return name in ("http.server", "pip")


def test_modules_that_pages_name_are_there():
    named = {name for page in PAGES for name in re.findall(r"`python -m ([\w.]+)", page.read_text())}
    assert not [name for name in named if not module_is_there(name)]


def test_files_that_pages_name_are_there():
    for page in PAGES:
        for name in re.findall(r"`((?:docs|examples|tests|benchmarks|src)/[\w./-]+\.\w+)`", page.read_text()):
            assert (ROOT / name).exists(), f"{page.name}: {name}"


def test_every_figure_has_a_script_that_make_runs():
    figures = ROOT / "docs" / "figures"
    scripts = {path.stem: path.read_text() for path in figures.glob("*.py")}
    for figure in [*figures.glob("*.png"), *figures.glob("*.svg")]:
        assert any(figure.name in script for script in scripts.values()), figure.name
    recipe = re.search(r"^figures:.*?(?=\n\S)", (ROOT / "Makefile").read_text(), flags=re.M | re.S)[0]
    assert {name for name in scripts if name in recipe or f"{name}.py" in recipe} == set(scripts)


def test_the_table_of_fit_errors_is_what_was_measured():
    page = (ROOT / "docs" / "choosing.md").read_text()
    assert draw_fit_error.with_table(page, draw_fit_error.read()) == page
    assert "<!-- fit error -->\n| kernels |" in page


def test_the_table_of_cifar10_is_what_was_measured():
    page = (ROOT / "docs" / "compare.md").read_text()
    table = re.search(r"<!-- cifar10 -->\n(.*?)<!-- end -->", page, flags=re.S)[1].splitlines()[2:]
    with (ROOT / "benchmarks" / "results" / "cifar10" / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for line, row in zip(table, rows, strict=True):
        name = "triangle, width fixed" if row["variant"] == "triangle_fixed" else row["interpolation"]
        cells = [row["model"], f"{row['size']}² / {row['count']}", name, f"{int(row['parameters']):,}", row["runs"]]
        for measure, digits in (("train_loss", 3), ("val_top5", 2), ("val_top1", 2)):
            mean, error = (float(row[f"{measure}_{part}"]) for part in ("mean", "error"))
            cells.append(f"{mean:.{digits}f} ± {error:.{digits}f}")
        assert line == f"| {' | '.join(cells)} |"


def test_a_fit_is_better_than_the_largest_taps(monkeypatch):
    monkeypatch.setattr(draw_fit_error, "KERNELS", 4)
    kernels = draw_fit_error.smooth(9)
    assert kernels.shape == (4, 9, 9)
    assert draw_fit_error.largest_taps(kernels, 81) == 0
    assert 0.1 < draw_fit_error.largest_taps(kernels, 9) < 1


def test_blocks_of_code_are_short_enough_to_read():
    for page in PAGES:
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.M | re.S):
            ast.parse(block)
            assert max(map(len, block.splitlines())) <= 120, page.name
