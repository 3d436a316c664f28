"Programs from the command line: sources, completion, benchmark, dispatcher (spec 51.1, 51.2, 51.6, 70.6)"
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from conftest import data, shared

from llamaref.files import hub
from llamaref.programs import bench, completion
from llamaref.programs import main as programs

TINY = str(data('models', 'tiny-qwen3.gguf'))
GREEDY = ['--device', 'numpy', '--temp', '0', '-c', '256']

@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith(('LLAMA_', 'LLAMAREF_', 'HF_', 'XDG_', 'HUGGINGFACE')): monkeypatch.delenv(name)
    monkeypatch.setenv('XDG_CONFIG_HOME', str(tmp_path/'no-config'))

@pytest.fixture
def run(capfdbinary):
    def run(main, *words):
        code = main([str(w) for w in words])
        out, err = capfdbinary.readouterr()
        return out.decode('utf-8', 'replace'), err.decode('utf-8', 'replace'), code
    return run

def process(*words, **more):
    return subprocess.run([sys.executable, '-m', 'llamaref', *map(str, words)], capture_output=True,
                          text=True, timeout=120, **more)

# --- dispatcher (51.1)

def test_no_arguments_is_help(run):
    out, err, code = run(programs.main)
    assert code == 0 and 'completion' in out and 'tokenize' in out and 'bench' in out and err == ''

@pytest.mark.parametrize('words', [['help'], ['-h'], ['--help'], ['help', 'all'], ['version'], ['--version'],
                                   ['help', 'bench'], ['complete', '-h'], ['completion', '--usage'],
                                       ['bench', '--version']])
def test_help_and_version_exit_zero(run, words):
    out, err, code = run(programs.main, *words)
    assert code == 0 and out and err == ''

def test_unknown_command(run): assert run(programs.main, 'X') == ('', "error: unknown command 'X'\n", 1)

def test_python_dash_m_and_exit_codes():
    assert process('help').returncode == 0
    r = process('nonsense')
    assert (r.returncode, r.stdout, r.stderr) == (1, '', "error: unknown command 'nonsense'\n")
    r = process('completion', '-m', '/nonexistent.gguf', '-p', 'x')
    assert r.returncode == 1 and r.stdout == '' and '/nonexistent.gguf' in r.stderr   # not lost

def test_help_is_quick_because_it_loads_nothing():
    code = ("import sys; from llamaref.programs.main import main; main(['help']); "
            "sys.exit('numpy' in sys.modules)")
    assert subprocess.run([sys.executable, '-c', code], capture_output=True).returncode == 0

def test_a_closed_pipe_is_no_traceback():
    r = subprocess.run(f'{sys.executable} -m llamaref completion -h | head -1', shell=True,
        capture_output=True, text=True)
    assert 'Traceback' not in r.stderr

# --- common options in a program (51.2)

@pytest.mark.parametrize('main', [completion.main, bench.main])
def test_model_is_required(run, main): assert run(main, '-v')[1:] == ('error: --model is required\n', 1)

@pytest.mark.parametrize('words', [['--bogus'], ['-c'], ['-c', 'many'], ['--override-kv', 'a=foo:1']])
def test_bad_options_exit_1_with_empty_stdout(run, words):
    out, err, code = run(completion.main, *words)
    assert (out, code) == ('', 1) and words[0] in err

def test_device_is_named_or_the_present_ones_are(run):
    out, err, code = run(completion.main, '-m', TINY, '-p', 'x', '--device', 'nope')
    assert (out, code) == ('', 1) and err.startswith('error: ') and 'numpy' in err
    assert 'numpy' in run(completion.main, '--list-devices')[0]

def test_device_from_the_environment(monkeypatch):
    from llamaref.flags import parse_args
    monkeypatch.setenv('LLAMAREF_DEVICE', 'numpy')
    load = lambda *words: programs.load_model(parse_args('completion', ['-m', TINY, *words]))
    assert load().device.name.startswith('numpy')
    monkeypatch.setenv('LLAMA_ARG_DEVICE', 'nope')   # the former wins
    with pytest.raises(programs.LlamarefError, match='nope'): load()
    assert load('--device', 'numpy').device.name.startswith('numpy')

def test_override_kv_reaches_the_model():
    from llamaref.flags import parse_args
    words = ['-m', TINY, '--device', 'numpy', '--override-kv', 'qwen3.context_length=int:1536']
    assert programs.load_model(parse_args('completion', words, {}, [])).hparams.n_ctx_train == 1536

def test_ignored_flags_change_nothing(run):
    words = ['-m', TINY, *GREEDY, '-p', 'One day', '-n', '4']
    assert run(completion.main, *words)[0] == run(completion.main, *words, '-ngl', '99', '-fa', 'on',
        '--no-mmap')[0]

def test_config_file_and_warning(run, monkeypatch, tmp_path):
    (tmp_path/'llamaref').mkdir()
    text = f'[*]\nmodel = {TINY}\ndevice = numpy\ntemp = 0\nn = 4\nnoise = 1\n'
    (tmp_path/'llamaref'/'config.ini').write_text(text)
    monkeypatch.setenv('XDG_CONFIG_HOME', str(tmp_path))
    monkeypatch.setenv('LLAMA_ARG_CTX_SIZE', '64')
    out, err, code = run(completion.main, '-p', 'One day', '-c', '256')
    assert code == 0 and "option 'noise' not recognized" in err
    assert ('warn: LLAMA_ARG_CTX_SIZE environment variable is set, '
            'but will be overwritten by command line argument -c') in err

# --- model sources (51.2)

@pytest.fixture
def cache(tmp_path, monkeypatch):
    "A Hugging Face cache built by hand, and no sockets"
    root, commit = tmp_path/'hub'/'models--ggml-org--models', 'c0ffee' * 6 + 'dead'
    for path, oid in (('t/s-Q8_0.gguf', 'a' * 64), ('t/o-F16.gguf', 'b' * 40)):
        link = root/'snapshots'/commit/path
        link.parent.mkdir(parents=True, exist_ok=True)
        (root/'blobs').mkdir(exist_ok=True)
        (root/'blobs'/oid).write_bytes(b'GGUF')
        link.symlink_to(os.path.relpath(root/'blobs'/oid, link.parent))
    (root/'refs').mkdir()
    (root/'refs'/'main').write_text(commit)
    monkeypatch.setenv('LLAMA_CACHE', str(tmp_path/'hub'))
    def refuse(*a, **k): raise AssertionError('a socket was opened')
    monkeypatch.setattr(socket, 'socket', refuse)
    return tmp_path/'hub'

@pytest.mark.parametrize('words, want', [
    (['-hf', 'ggml-org/models', '--offline'], 't/s-Q8_0.gguf'), (['-hf', 'ggml-org/models:F16', '--offline'],
    't/o-F16.gguf'), (['-hf', 'ggml-org/models:f16', '--offline'], 't/o-F16.gguf'),
    (['-hf', 'ggml-org/models', '-hff', 't/o-F16.gguf', '--offline'], 't/o-F16.gguf'),
    (['-hf', 'ggml-org/models:F16', '-hff', 't/s-Q8_0.gguf', '--offline'], 't/s-Q8_0.gguf'),
          # the file beats the quant
    (['-m', 'other.gguf', '-hf', 'ggml-org/models', '--offline'], 't/s-Q8_0.gguf'),
    (['-hf', 'ggml-org/models'], 't/s-Q8_0.gguf')])
def test_hf_from_the_cache(cache, words, want):
    from llamaref.flags import parse_args
    path = programs.model_path(parse_args('completion', words))
    assert path.endswith(want) and os.path.exists(path)

@pytest.mark.parametrize('words, why', [
    (['-hf', 'ggml-org/models:Q2_K'], 'no GGUF files found in repository ggml-org/models'),
    (['-hf', 'ggml-org/models', '-hff', 'nope.gguf'], "file 'nope.gguf' not found in repository"),
    (['-hf', 'ggml-org/models', '-hff', '../../../refs/main'], 'not found in repository'),
    (['-hf', 'ggml-org/nothere'], 'ggml-org/nothere'),
    (['-hf', 'badrepo'], 'error: invalid HF repo format, expected <user>/<model>[:quant]'),
    (['-mu', 'https://example.org/x/m.gguf'], 'required file is not available in cache (offline mode)'),
    (['-dr', 'gemma3'], 'required file is not available in cache (offline mode)')])
@pytest.mark.parametrize('offline', [['--offline'], []])
def test_unresolvable_sources_exit_1(cache, run, words, why, offline):
    out, err, code = run(completion.main, *words, *offline, '-p', 'x')
    assert (out, code) == ('', 1) and why in err and err.startswith('error: ')
    if 'nothere' in err or 'offline' in err: assert str(cache) in err

def test_cache_list(cache, run):
    assert run(completion.main, '--cache-list')[0] == (
        'number of models in cache: 2\n   1. ggml-org/models:F16\n   2. ggml-org/models:Q8_0\n')

def test_cache_list_of_nothing(run, monkeypatch, tmp_path):
    monkeypatch.setenv('LLAMA_CACHE', str(tmp_path/'none'))
    assert run(completion.main, '-cl') == ('number of models in cache: 0\n', '', 0)

def test_a_link_to_nothing_and_a_bad_ref(cache):
    root = cache/'models--ggml-org--models'
    (root/'blobs'/('a' * 64)).unlink()
    with pytest.raises(programs.OptionError,
        match='required file is not available'): hub.resolve_hf('ggml-org/models', cache=cache)
    (root/'refs'/'main').write_text('../../../../etc')
    with pytest.raises(programs.OptionError,
        match='not available in cache'): hub.resolve_hf('ggml-org/models', cache=cache)

def test_any_ref_will_do(cache):
    root = cache/'models--ggml-org--models'
    (root/'refs'/'pr').mkdir()
    (root/'refs'/'main').rename(root/'refs'/'pr'/'1')
    assert hub.resolve_hf('ggml-org/models', cache=cache).name == 's-Q8_0.gguf'

@pytest.mark.parametrize('env, want', [
    ({'LLAMA_CACHE': '/1', 'HF_HUB_CACHE': '/2'}, '/1'), ({'HF_HUB_CACHE': '/2',
    'HUGGINGFACE_HUB_CACHE': '/3'}, '/2'), ({'HUGGINGFACE_HUB_CACHE': '/3', 'HF_HOME': '/4'}, '/3'),
    ({'HF_HOME': '/4', 'XDG_CACHE_HOME': '/5'}, '/4/hub'), ({'XDG_CACHE_HOME': '/5', 'HOME': '/h'},
        '/5/huggingface/hub'), ({'HOME': '/h'}, '/h/.cache/huggingface/hub')])
def test_cache_directory(env, want): assert str(hub.hub_dir(env)) == want

@pytest.mark.parametrize('name', ['a', 'a/b/c', '/b', 'a/', '-a/b', 'a-/b', 'a--b/c', 'a/b..c', 'a/../b',
    'a\n/b', 'a/b\n', ''])
def test_bad_repository_names(name):
    with pytest.raises(programs.OptionError, match='invalid HF repo format'): hub.split_repo(name)

# --- completion (51.6); texts are the peer's (golden/spec-traces.json)

FACT = ('<|im_start|>user\nWhat colour is the fox?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n',
        'The fox is red.')
RAW = ('One sunny day Leo walked through Rome. ',
       '2. There Leo saw a green snake by the tall grass. The snake was hungry, so Leo gave it some eggs.')

def complete(run, *words, n=64): return run(completion.main, '-m', TINY, *GREEDY, '-n', n, *words)

def test_text_then_end_of_text(run):
    out, err, code = complete(run, '-p', FACT[0], '--no-display-prompt')
    assert (out, code) == (FACT[1] + ' [end of text]\n\n', 0)

def test_prompt_is_shown_without_its_special_tokens(run):
    assert complete(run, '-p', RAW[0])[0].startswith(RAW[0] + RAW[1])
    out = complete(run, '-p', FACT[0])[0]
    assert out.startswith('user\nWhat colour is the fox?\n') and '<|im_start|>' not in out
    assert complete(run, '-p', FACT[0], '-sp')[0].startswith('<|im_start|>user\nWhat colour')

def test_times_go_to_stderr(run):
    err = complete(run, '-p', RAW[0], n=4)[1]
    assert 'prompt eval time' in err and 'tokens per second' in err and ' eval time' in err
    assert complete(run, '-p', RAW[0], '--log-disable', n=4)[1] == ''

def test_prompt_from_a_file(run, tmp_path):
    (tmp_path/'p').write_text(FACT[0] + '\n')
    assert complete(run, '-f', tmp_path/'p', '--no-display-prompt')[0].startswith(FACT[1])

def test_number_of_tokens(run):
    whole = complete(run, '-p', RAW[0], n=12)[0]
    for n in (1, 5):
        part = complete(run, '-p', RAW[0], n=n)[0]
        assert whole.startswith(part.removesuffix('\n\n')) and len(part) < len(whole)
    assert complete(run, '-p', RAW[0], n=0)[0] == RAW[0] + '\n\n'

def test_batch_size_does_not_matter(run):
    want = complete(run, '-p', RAW[0], n=12)[0]
    assert complete(run, '-p', RAW[0], '-b', 3, '-ub', 2, n=12)[0] == want

def test_reverse_prompt_stops_and_is_shown(run):
    out = complete(run, '-p', RAW[0], '-r', 'grass.', '--no-display-prompt')[0]
    assert out == '2. There Leo saw a green snake by the tall grass.\n\n'

def test_ignore_eos_goes_on(run):
    out = complete(run, '-p', FACT[0], '--ignore-eos', '--no-display-prompt', n=20)[0]
    assert out.startswith(FACT[1]) and 'end of text' not in out

def test_prompt_too_long(run):
    out, err, code = complete(run, '-p', 'fox ' * 500)
    assert (out, code) == ('', 1) and 'prompt is too long (' in err and 'tokens, max 252)' in err

def test_empty_prompt_begins_at_the_beginning(run):
    class NoBos:
        bos = None
        def encode(self, *a, **k): return []
    with pytest.raises(programs.OptionError, match='prompt is empty'):
        completion.prompt_ids(NoBos(), None, 256)
    assert complete(run, '-p', '')[::2] == complete(run)[::2] and complete(run)[2] == 0

def test_full_context_stops_or_shifts(run):
    words, until_full = ['-p', RAW[0], '--ignore-eos', '--no-display-prompt'], 256 - 13 - 1   # of 13 tokens
    out, err, code = complete(run, *words, n=-1)
    assert code == 0 and f'{until_full:5d} runs' in err   # the token sampled last is not read any more
    assert f'{until_full:5d} runs' in complete(run, *words, '--context-shift', n=-2)[1]
    shifted, err, code = complete(run, *words, '--context-shift', '--keep', '4', n=300)
    assert code == 0 and '  299 runs' in err and shifted.startswith(out.removesuffix('\n\n'))

@pytest.mark.parametrize('words', [['--prompt-cache', 'f'], ['--prompt-cache-all'], ['-cnv'], ['-st']])
def test_what_is_not_built_says_so(run, words):
    out, err, code = complete(run, '-p', 'x', *words)
    assert (out, code) == ('', 1) and 'not built yet' in err

def test_verbose_prompt_lists_the_tokens(run):
    err = complete(run, '-p', RAW[0], '--verbose-prompt', n=1)[1]
    assert 'number of tokens in prompt = 13' in err and " -> '" in err

def test_seeds(run):
    draw = lambda seed: complete(run, '-p', 'One day', '--temp', '2', '--top-k', '0', '--top-p', '1',
        '--min-p', '0', '-s', seed, n=12)[0]
    assert draw(7) == draw(7)
    assert len({draw(-1) for _ in range(5)}) > 1   # llama-cpp-python#1797: a random seed is random

def test_interrupt_exits_130():
    words = ['-m', TINY, *GREEDY, '-p', RAW[0], '--ignore-eos', '-n', '-1', '--context-shift']
    p = subprocess.Popen([sys.executable, '-m', 'llamaref', 'completion', *words], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE)
    assert p.stdout.read(len(RAW[0]) + 8)    # it writes
    time.sleep(.1)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=30)
    assert p.returncode == 130 and b'Traceback' not in err and b'eval time' in err

def test_stories_without_a_cache(run):
    model = shared('models', 'stories260K.gguf')
    out, err, code = run(completion.main, '-m', model, '--device', 'numpy', '--temp', '0', '-n', '12',
                         '-p', 'Once upon a time there was a cat')
    assert (out, code) == ('Once upon a time there was a cat named Tom. Tom loved to play with his\n\n', 0)

# --- benchmark (70.6)

BENCH = ['-m', TINY, '--device', 'numpy', '-p', '8,16', '-n', '4', '-d', '0,8', '-r', '2', '--no-warmup']

def test_bench_table(run):
    out, err, code = run(bench.main, *BENCH)
    lines = out.splitlines()
    assert code == 0 and len(lines) == 2 + 6 + 2 and lines[-1].startswith('loaded in ')
    assert lines[0] == '| model | size | params | device | threads | test | tok/s |'
    assert [line.split(' | ')[5] for line in lines[2:8]] == ['pp8', 'pp16', 'tg4', 'pp8 @ d8', 'pp16 @ d8',
        'tg4 @ d8']

def test_bench_json(run):
    rows = json.loads(run(bench.main, *BENCH, '-o', 'json', '-t', '1')[0])
    assert [(r['kind'], r['n'], r['depth']) for r in rows][:3] == [('pp', 8, 0), ('pp', 16, 0), ('tg', 4, 0)]
    assert all(len(r['samples_ts']) == 2 and r['avg_ts'] > 0 and r['threads'] == 1 for r in rows)
    assert all(r['load_s'] > 0 and r['peak_bytes'] > r['size'] for r in rows)

def test_bench_of_nothing(run):
    assert run(bench.main, '-m', TINY, '-p', '0', '-n', '0')[2] == 1

def test_bench_alternates():
    calls = []
    class Side:
        def __init__(self, name): self.name = name
        def run(self, test): calls.append((self.name, str(test))); return 1.
    tests = [bench.Test('pp', 8), bench.Test('tg', 4)]
    bench.measure(tests, {'ours': Side('o'), 'peer': Side('p')}, 2, warmup=False)
    assert calls == [('o', 'pp8'), ('p', 'pp8'), ('o', 'tg4'), ('p', 'tg4')] * 2

@pytest.mark.oracle
def test_bench_against_the_peer(run):
    pytest.importorskip('xllamacpp')
    out, err, code = run(bench.main, *BENCH[:4], '-p', '32', '-n', '8', '-r', '2', '-t', '1', '--peer', '-o',
        'json')
    rows = json.loads(out)
    assert code == 0 and [r['test'] for r in rows] == ['pp32', 'tg8']
    for r in rows:
        each = [a / b for a, b in zip(r['samples_ts'], r['peer_samples_ts'])]
        assert r['ratio'] == pytest.approx(sum(each) / 2) and r['peer_version']

def test_devices_are_listed_a_line_each(run):
    out = run(completion.main, '--list-devices')[0].splitlines()
    assert any(line.startswith('numpy: ') for line in out) and not any(line.startswith('(') for line in out)

def test_a_home_that_cannot_be_written_still_computes():
    "pyopencl makes a cache folder when it is imported; without one numpy does the work, and says why"
    code = ("import llamaref as lr; from conftest import data; "
            "print(lr.load(data('models', 'rnd-qwen3.gguf')).device.name, lr.Device.get('numpy').name)")
    tests = os.path.dirname(os.path.abspath(__file__))
    env = {**os.environ, 'HOME': '/dev/null', 'XDG_CACHE_HOME': '/dev/null/x', 'PYTHONPATH': tests}
    p = subprocess.run([sys.executable, '-c', code], env=env, capture_output=True, text=True, timeout=120)
    assert p.returncode == 0 and p.stdout.split()[1] == 'numpy', p.stderr

@pytest.mark.skipif(not os.path.exists('/dev/full'), reason='no /dev/full here')
@pytest.mark.parametrize('to', ['>/dev/full', '>&-'])
def test_output_that_cannot_be_written_is_one_line(to):
    command = f'{sys.executable} -m llamaref completion -m {TINY} -p Hello -n 4 --temp 0 --device numpy {to}'
    p = subprocess.run(['sh', '-c', command], capture_output=True, text=True, timeout=120)
    assert 'Traceback' not in p.stderr and p.returncode in (0, 1)
