"llamaref-tokenize: the acceptance table of spec 51.4, exit codes, and odd input"
import io
import os
import subprocess
import sys

import pytest
from conftest import ROOT, data, shared

from llamaref.programs.tokenize import main

def gpt2(): return str(data('vocabs', 'ggml-vocab-gpt-2.gguf'))
def small(): return str(data('models', 'rnd-llama.gguf'))
def stories(): return str(shared('models', 'stories260K.gguf'))

@pytest.fixture
def run(capfdbinary, monkeypatch):
    "Run in this process; stdout, stderr and exit code"
    for name in [k for k in os.environ if k.startswith('LLAMA_ARG_')]: monkeypatch.delenv(name)
    def call(*words, stdin=b''):
        monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(stdin)))
        capfdbinary.readouterr()
        code = main(list(words))
        out, err = capfdbinary.readouterr()
        return out, err.decode(), code
    return call

def process(*words, stdin=b'', **env):
    "Run as a process of its own"
    p = subprocess.run([sys.executable, '-m', 'llamaref', 'tokenize', *words], input=stdin,
                       capture_output=True, cwd=ROOT,
                       env={'PATH': os.environ['PATH'], 'PYTHONPATH': str(ROOT), **env})
    return p.stdout, p.stderr.decode(), p.returncode

# ---- the acceptance table

HELLO = b"""     1 -> '<s>'
   346 -> ' He'
   306 -> 'll'
   414 -> 'o'
   263 -> ' w'
   304 -> 'or'
   341 -> 'ld'
Total number of tokens: 7
"""

@pytest.mark.parametrize('words, stdin, want', [
    (['-p', 'Hello world', '--ids'], b'', b'[1, 346, 306, 414, 263, 304, 341]\n'),
    (['-p', 'Hello world', '--ids', '--no-bos'], b'', b'[346, 306, 414, 263, 304, 341]\n'),
    (['-p', 'Hello world', '--show-count'], b'', HELLO),
    (['--stdin', '--ids'], b'Hi\n', b'[1, 320, 417, 13]\n'),
    (['--stdin', '--ids'], b'', b'[1]\n'),
    (['-p', r'a\nb', '--ids'], b'', b'[1, 261, 13, 430]\n'),
    (['-p', r'a\nb', '--ids', '--no-escape'], b'', b'[1, 261, 500, 416, 430]\n'),
    (['-p', '<s>a</s>', '--ids'], b'', b'[1, 1, 261, 2]\n'),
    (['-p', '<s>a</s>', '--ids', '--no-parse-special'], b'',
     b'[1, 410, 504, 419, 505, 412, 504, 492, 419, 505]\n'),
    (['-p', 'é'], b'', "     1 -> '<s>'\n   410 -> ' '\n   485 -> 'é'\n".encode())])
def test_acceptance(run, words, stdin, want):
    out, err, code = run('-m', stories(), *words, stdin=stdin)
    assert (out, code) == (want, 0)
    assert ('2 BOS' in err) == (b'[1, 1, ' in want)

def test_acceptance_of_files(run, tmp_path):
    f = tmp_path/'f.txt'
    f.write_bytes(b'Hi\n')
    assert run('-m', stories(), '-f', str(f), '--ids')[0] == b'[1, 320, 417, 13]\n'
    out = run('-m', stories(), '--stdin', '-p', 'zzz', '-f', str(f), '--ids', stdin=b'x')[0]
    assert out == b'[1, 410, 444]\n'
    f.write_bytes(b'')
    assert run('-m', stories(), '-f', str(f), '--ids')[::2] == (b'[1]\n', 0)

def test_acceptance_of_qwen2(run):
    qwen2 = str(shared('vocabs', 'ggml-vocab-qwen2.gguf'))
    text = '<|im_start|>user\\nhé🙂'
    assert run('-m', qwen2, '-p', text, '--ids')[0] == b'[151644, 872, 198, 128959, 145080]\n'
    assert run('-m', qwen2, '-p', text, '--show-count')[0].endswith(b'Total number of tokens: 5\n')

# ---- the same with files that ship here

def test_ids_and_count(run):
    want = b'[270, 338, 17031, 1332]\nTotal number of tokens: 4\n'
    assert run('-m', gpt2(), '-p', "it's 123 test", '--ids', '--show-count')[::2] == (want, 0)

def test_empty_list(run, tmp_path):
    (tmp_path/'f').write_bytes(b'')
    assert run('-m', gpt2(), '-f', str(tmp_path/'f'), '--ids')[::2] == (b'[]\n', 0)
    assert run('-m', gpt2(), '-f', str(tmp_path/'f'), '--show-count')[0] == b'Total number of tokens: 0\n'

def test_bos_of_the_model(run):
    assert run('-m', small(), '-p', 'the', '--ids')[0] == b'[1, 265]\n'
    assert run('-m', small(), '-p', 'the', '--ids', '--no-bos')[0] == b'[265]\n'

def test_eos_goes_with_bos(run):
    "A vocabulary that adds EOS adds it here iff it adds BOS"
    add = ['--override-kv', 'tokenizer.ggml.add_eos_token=bool:true']
    assert run('-m', small(), '-p', 'the', '--ids', *add)[0] == b'[1, 265, 2]\n'
    assert run('-m', small(), '-p', 'the', '--ids', '--no-bos', *add)[0] == b'[265]\n'

def test_pieces_are_the_bytes_of_the_text(run):
    text = "é🦙 'x'\nnew"
    out = run('-m', gpt2(), '-p', text)[0]
    import re
    pieces = re.findall(rb"^ *\d+ -> '(.*?)'\n(?= *\d+ -> |\Z)", out, re.S | re.M)
    assert b''.join(pieces) == text.encode()

@pytest.mark.parametrize('words, want', [
    ([], b'[64, 198, 275]\n'), (['-e'], b'[64, 198, 275]\n'), (['--no-escape'], b'[64, 59, 77, 275]\n')])
def test_escapes_apply_to_every_source(run, tmp_path, words, want):
    f = tmp_path/'f'
    f.write_bytes(rb'a\n b')
    for source, stdin in ((['-p', r'a\n b'], b''), (['-f', str(f)], b''), (['--stdin'], rb'a\n b')):
        assert run('-m', gpt2(), *source, '--ids', *words, stdin=stdin)[0] == want

def test_last_source_wins(run, tmp_path):
    f = tmp_path/'f'
    f.write_bytes(b'b')
    assert run('-m', gpt2(), '-p', 'a', '-f', str(f), '--ids')[0] == b'[65]\n'
    assert run('-m', gpt2(), '-f', str(f), '-p', 'a', '--ids')[0] == b'[64]\n'

def test_bytes_that_are_no_text(run):
    ids = run('-m', small(), '--stdin', '--ids', '--no-escape', stdin=b'\xff')[0]
    assert ids.startswith(b'[1, ') and ids.endswith(b', 258]\n')      # <0xFF> is token 258 there

# ---- errors: stdout empty, the reason on stderr, exit 1

@pytest.mark.parametrize('words, message', [
    ([], 'error: must specify one of: --stdin, --file or --prompt'),
    (['-m', 'x.gguf'], 'error: must specify one of: --stdin, --file or --prompt'),
    (['-m', 'x.gguf', '-p', ''], 'error: must specify one of: --stdin, --file or --prompt'),
    (['-p', 'a'], 'error: --model is required'),
    (['--stdin'], 'error: --model is required'),
    (['-p', 'a', '-m', 'x.gguf'], "error: could not load model from file 'x.gguf'."),
    (['-p', 'a', '-m', __file__], f"error: could not load model from file '{__file__}'."),
    (['-f', 'nowhere.txt', '-m', 'x.gguf'], 'nowhere.txt'),
    (['--idz'], 'error: invalid argument: --idz'),
    (['--ids=1'], 'error: invalid argument: --ids=1'),
    (['-p'], 'expected value for argument')])
def test_errors(run, words, message):
    out, err, code = run(*words)
    assert (out, code) == (b'', 1) and message in err

def test_a_file_without_vocabulary(run, tmp_path):
    import struct
    f = tmp_path/'empty.gguf'
    f.write_bytes(b'GGUF' + struct.pack('<IQQ', 3, 0, 0))
    out, err, code = run('-m', str(f), '-p', 'a')
    assert (out, code) == (b'', 1) and "could not load model from file" in err

def test_source_is_asked_for_before_the_model_and_stdin_is_read_after(run, monkeypatch):
    class Untouched(io.TextIOWrapper):
        def read(self, *a): raise AssertionError('stdin was read')
    assert run('-m', 'x.gguf')[1].count('must specify') == 1
    monkeypatch.setattr(sys, 'stdin', Untouched(io.BytesIO(b'a')))
    assert main(['-m', 'x.gguf', '--stdin']) == 1

# ---- as a process

def test_process_writes_raw_bytes_and_exits_0():
    out, err, code = process('-m', gpt2(), '-p', '🦙')
    assert code == 0 and out == b"  8582 -> '\xf0\x9f'\n    99 -> '\xa6'\n   247 -> '\x99'\n"

@pytest.mark.parametrize('words, code', [
    (['-p', 'a'], 1), (['-h'], 0), (['--version'], 0), (['-p', 'a', '-m', 'no.gguf'], 1)])
def test_process_exit_codes(words, code):
    out, err, got = process(*words)
    assert got == code and bool(out) == (code == 0) and bool(err) == (code == 1)

def test_process_takes_the_model_from_the_environment():
    assert process('--stdin', '--ids', stdin=b'a', LLAMA_ARG_MODEL=gpt2())[::2] == (b'[64]\n', 0)
