"basics, errors and log: what the lessons do not show"
import io
import logging
import os
import subprocess
import sys

import pytest

from llamaref import errors, log
from llamaref.basics import Table, human_bytes, patch


def test_patch_takes_a_class_defined_in_a_test():
    class A: pass

    @patch
    def twice(self:A, n:int)->int: return 2 * n
    assert A().twice(4) == 8 and A.twice.__qualname__ == 'A.twice'

@pytest.mark.parametrize('f', [lambda self: 1, lambda: 1])
def test_patch_needs_an_annotation(f):
    with pytest.raises(TypeError, match='annotate'): patch(f)

def test_table_of_nothing():
    assert repr(Table(['a', 'b'], [])) == '  a  b'
    assert Table(['a'], [])._repr_html_().startswith('<table>')

def test_table_escapes_head_and_cells():
    html = Table(['<b>'], [['</td>']])._repr_html_()
    assert '<b>' not in html and '&lt;/td&gt;' in html

@pytest.mark.parametrize('n, text', [(0, '0 B'), (1023, '1023 B'), (1024, '1.00 KiB'), (10 * 1024,
                                     '10.0 KiB'), (1 << 20, '1.00 MiB'), (1 << 50, '1024.0 TiB'), (-2048,
                                         '-2.00 KiB')])
def test_human_bytes(n, text): assert human_bytes(n) == text

def test_every_error_is_ours_and_none_hides_another():
    kinds = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)]
    assert len(kinds) == 9 and all(issubclass(e, errors.LlamarefError) for e in kinds)
    assert errors.ContextError('x').code == -1 and errors.ContextError('x', 1).code == 1

@pytest.fixture
def clean_log():
    root = log.get_logger()
    kept = root.handlers[:], root.level, root.propagate
    yield root
    for h in root.handlers[:]: root.removeHandler(h)
    root.handlers[:], root.propagate = kept[0], kept[2]
    root.setLevel(kept[1])

@pytest.mark.parametrize('verbosity, lines', [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (99, 5), (-1,
    0)])
def test_verbosity(clean_log, capsys, verbosity, lines):
    root = log.setup_logging(verbosity)
    for level in (logging.ERROR, logging.WARNING, logging.INFO, log.TRACE, logging.DEBUG): root.log(level,
        'x')
    said = capsys.readouterr()
    assert said.out == '' and said.err.count('x') == lines

def test_setup_twice_does_not_double_lines(clean_log, capsys):
    log.setup_logging(); log.setup_logging().info('once')
    assert capsys.readouterr().err == 'once\n'

def test_log_file_has_no_colours(clean_log, tmp_path):
    log.setup_logging(file=tmp_path/'log', colors='on', prefix=True).warning('careful')
    assert (tmp_path/'log').read_text() == 'W careful\n'

@pytest.mark.parametrize('env, want', [({}, True), ({'NO_COLOR': '1'}, False), ({'TERM': 'dumb'}, False)])
def test_colours_on_a_terminal(monkeypatch, env, want):
    tty = io.StringIO(); tty.isatty = lambda: True
    for k in ('NO_COLOR', 'TERM'): monkeypatch.delenv(k, raising=False)
    for k, v in env.items(): monkeypatch.setenv(k, v)
    assert log.want_colors('auto', tty) is want
    assert not log.want_colors('auto', io.StringIO()) and not log.want_colors('off', tty)

def test_the_last_line_survives_a_hard_exit():
    code = "import os; from llamaref.log import setup_logging; setup_logging().error('gone'); os._exit(1)"
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, env=dict(os.environ))
    assert run.stderr == 'gone\n' and run.stdout == ''

def test_basics_import_nothing_heavy():
    code = ('import sys, llamaref, llamaref.flags, llamaref.log; '
            'print([m for m in ("numpy", "pyopencl", "gguf", "flask", "fastcore") if m in sys.modules])')
    assert subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout == '[]\n'
