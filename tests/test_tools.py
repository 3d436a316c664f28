"The tools around the book: which outputs are the same, which imports a floor may have, how a page is made"
import importlib.machinery, importlib.util, json, pathlib, sys

import pytest

TOOLS = pathlib.Path(__file__).resolve().parent.parent/'tools'
sys.path.insert(0, str(TOOLS))
import nbcheck, nbrun    # noqa: E402

def load(name):
    "A tool without the suffix .py"
    loader = importlib.machinery.SourceFileLoader(name, str(TOOLS/name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module

@pytest.mark.parametrize('a, b', [
    ('ran in 1.31 s', 'ran in 0.98 s'),
    ('decode 35.2 tok/s, 12 ms', 'decode 8.1 tok/s, 9.5 ms'),
    ('1.9 ms ± 0.2 ms', '2.4 ms ± 0.1 ms'),
    ('3.1x faster', '2.8x faster'),
    ('<Foo at 0x7f1234567890>', '<Foo at 0x7f0987654321>'),
    ('loss 0.12345678', 'loss 0.12345699'),
    ('worst 2.1e-07', 'worst 8.4e-06'),
    ('a   b\n c', 'a b c'),
    ('opened /tmp/tmpab12/x.gguf', 'opened /tmp/tmpzz99/y.gguf'),
    ('on cpu-haswell-AMD EPYC 7', 'on cpu-skylake-Intel(R) Xeon(R) Processor'),
    ("('opencl:0', 'AMD EPYC, 8 units')", "('opencl:0', 'Intel(R) Xeon(R), 2 units')"),
    ('429.38 ms per token, 2.33 tokens per second', '9.1 ms per token, 110.0 tokens per second'),
])
def test_same_output(a, b): assert nbrun.same_text(a, b)

@pytest.mark.parametrize('a, b', [
    ('12 tokens', '13 tokens'),                  # whole numbers count
    ('ids [1, 403, 407]', 'ids [1, 403, 408]'),
    ('Paris', 'London'),
    ('0.52', '0.53'),
    ('1e-3', '2e-3'),
    ('one line', 'one line more'),
    ('True', 'False'),
])
def test_other_output(a, b): assert not nbrun.same_text(a, b)

def cell(source, *outputs): return {'cell_type': 'code', 'source': source, 'outputs': list(outputs)}

def stream(text, name='stdout'): return {'output_type': 'stream', 'name': name, 'text': text}

def value(**data):
    return {'output_type': 'execute_result', 'data': {k.replace('_', '/'): v for k, v in data.items()}}

def test_compare_names_the_first_line_that_differs():
    a, b = cell('x', stream('one\ntwo 2\nthree')), cell('x', stream('one\ntwo 3\nthree'))
    assert nbrun.compare(a, a) is None
    assert nbrun.compare(a, b) == ('two 2', 'two 3')

def test_a_measured_cell_is_compared_by_kind_only():
    assert nbrun.compare(cell('#| measured\nx', stream('12')), cell('#| measured\nx', stream('99'))) is None
    assert nbrun.compare(cell('#| measured\nx', stream('12')), cell('#| measured\nx')) == ('text', 'nothing')

def test_warnings_on_stderr_do_not_count():
    assert nbrun.compare(cell('x', stream('a')), cell('x', stream('a'), stream('warning', 'stderr'))) is None

def test_a_picture_counts_by_being_there():
    a, b = (cell('x', value(image_png=x, text_plain='<Figure size 640x480>')) for x in ('AAAA', 'BBBB'))
    assert nbrun.compare(a, b) is None and nbrun.compare(a, cell('x')) is not None

def test_html_stands_in_where_the_text_says_nothing():
    a, b = (cell("x", value(text_html=f"<b>{n}</b>", text_plain="<HTML object>")) for n in (1, 2))
    assert nbrun.compare(a, a) is None and nbrun.compare(a, b)

@pytest.mark.parametrize('a, b, wrong', [
    ('llamaref.files.gguf', 'llamaref.errors', False),
    ('llamaref.errors', 'llamaref.files.gguf', True),
    ('llamaref.models.llama', 'llamaref.layers.rope', False),
    ('llamaref.layers.rope', 'llamaref.models.llama', True),
    ('llamaref.models.qwen3', 'llamaref.models.qwen2', False),
    ('llamaref.engine.slots', 'llamaref.server.app', True),
    ('llamaref.programs.main', 'llamaref', False),
    ('llamaref.context.model', 'llamaref', True),
    ('llamaref.convert.hf', 'llamaref.engine.slots', True),
    ('llamaref.testing.server', 'llamaref.programs.main', False),
])
def test_floors(a, b, wrong): assert nbcheck.wrong_floor(a, b) == wrong

def test_circles_are_found():
    graph = {'a': {'b'}, 'b': {'c'}, 'c': {'a', 'd'}, 'd': set()}
    assert list(nbcheck.circles(graph)) == ['imports in a circle: a -> b -> c -> a']

def notebook(*cells): return {'cells': list(cells), 'metadata': {}, 'nbformat': 4, 'nbformat_minor': 5}

def prose(source): return {'cell_type': 'markdown', 'source': source, 'id': 'p'}

def test_first_cell():
    assert list(nbcheck.title(notebook(prose('# a\n\n> b')))) == []
    assert len(list(nbcheck.title(notebook(prose('# a'))))) == 1
    assert len(list(nbcheck.title(notebook(prose('# a\n> b\n> c'))))) == 1
    assert len(list(nbcheck.title(notebook(prose('# a\n> b\n\nlost'))))) == 1

def test_what_the_site_runs_alone():
    run = lambda *src: list(nbcheck.docs_step(notebook(*map(cell, src), prose('end'))))
    later, = run('import os', '#| export\ndef f(a:"Later"): pass')
    assert later == "cell 1: f: 'Later' in quotes is not defined up to here"
    assert run('#| export\nclass A:\n    def f(self, b:"A"): pass') == []
    mixed, = run('x = 1', 'import os\nprint(x)')
    assert mixed == 'cell 1: split imports from use of x (the site runs it alone)'

def test_formulas_become_mathml():
    page = load('quarto').formulas(r'<span class="math inline">\(a_1 &lt; b\)</span>')
    assert '<msub><mi>a</mi><mn>1</mn></msub>' in page and '\\' not in page.replace('alttext="a_1', '')

def test_a_notebook_as_markdown(tmp_path):
    quarto = load('quarto')
    (tmp_path/'_quarto.yml').write_text('')
    nb = notebook({'cell_type': 'raw', 'source': '---\ntitle: T\ndescription: D\n---\n\n'},
                  prose('See [rope](03_layers/01_rope.ipynb) and [it](https://x.org/a.ipynb).'),
                  dict(cell('#| echo: false\n1', stream('out\n')), metadata={}),
                  dict(cell('f()', value(text_plain="'v'")), metadata={}),
                  dict(cell('fig', value(image_png='iVBORw0K', text_plain='<Figure>')), metadata={}))
    (tmp_path/'index.ipynb').write_text(json.dumps(nb))
    out = quarto.render_file(tmp_path/'index.ipynb', 'README.md')
    assert out == tmp_path/'_docs'/'README.md'
    assert out.read_text() == (
        '# T\n\n> D\n\nSee [rope](nbs/03_layers/01_rope.ipynb) and [it](https://x.org/a.ipynb).\n\n'
        "```text\nout\n```\n\n```python\nf()\n```\n\n```text\n'v'\n```\n\n```python\nfig\n```\n\n"
        '![](index_files/figure-commonmark/cell-7-output.png)\n')
    assert (tmp_path/'_docs'/'index_files'/'figure-commonmark'/'cell-7-output.png').exists()
