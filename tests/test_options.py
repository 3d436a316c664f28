"The option table and its three sources (spec 51.2)"
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaref.errors import OptionError
from llamaref.flags import TABLE, parse_args
from llamaref.options import (as_args, bash_words, config_files, csv_row, docs_table, help_text,
                              process_escapes, read_ini, rows_of, spellings, usage)

PROGRAMS = ('completion', 'tokenize', 'bench')

def parse(*args, program='completion', env=None, configs=()): return parse_args(program, args, env or {},
    list(configs))

def fails(*args, **kw):
    with pytest.raises(OptionError) as e: parse(*args, **kw)
    return str(e.value)

# --- command line

@pytest.mark.parametrize('program', PROGRAMS)
def test_no_spelling_has_two_rows(program): assert spellings(TABLE, program)

@pytest.mark.parametrize('args, dest, value', [
    (['-c', '128'], 'n_ctx', 128), (['--ctx_size', '128'], 'n_ctx', 128), (['--ctx-size', '128'], 'n_ctx',
    128), (['-n', '-2'], 'n_predict', -2), (['--predict', '5'], 'n_predict', 5),
    (['--no-escape'], 'escape', False), (['--no_escape'], 'escape', False), (['-e'], 'escape', True),
    (['--temp', '-1'], 'temperature', 0.), (['--temperature', '0'], 'temperature', 0.),
    (['-s', '-1'], 'seed', 4294967295), (['--seed', '42'], 'seed', 42),
    (['--samplers', 'top_k;temp'], 'samplers', ['top_k', 'temp']), (['--sampling-seq', 'kt'], 'samplers',
    'kt'), (['--top-nsigma', '2'], 'top_n_sigma', 2.), (['--typical', '.5'], 'typical_p', .5),
    (['--dry-base', '0.5'], 'dry_base', 1.75), (['--dry-base', '3'], 'dry_base', 3.),
    (['--dry-sequence-breaker', 'none'], 'dry_sequence_breakers', []),
    (['--dry-sequence-breaker', r'\n', '--dry-sequence-breaker', '.'], 'dry_sequence_breakers', ['\n', '.']),
    (['-l', '5+1.5', '-l', '6-2'], 'logit_bias', [(5, 1.5), (6, -2.)]),
    (['-r', 'User:', '-r', r'\n'], 'reverse_prompt', ['User:', '\n']),
    (['-no-cnv'], 'conversation', False), (['-cnv'], 'conversation', True), ([], 'conversation', 'auto'),
    (['-v'], 'verbosity', 5), (['--log-colors', 'off'], 'log_colors', False),
    (['--override-kv', 'a=int:1', '--override-kv', 'b=str:x,c=bool:false'], 'override_kv',
     [('a', 1), ('b', 'x'), ('c', False)])])
def test_reading(args, dest, value): assert getattr(parse(*args), dest) == value

def test_defaults_of_the_sampling_section():   # spec 30.4
    want = dict(seed=4294967295, top_k=40, top_p=.95, min_p=.05, top_n_sigma=-1, xtc_probability=0,
                xtc_threshold=.1, typical_p=1, temperature=.8, dynatemp_range=0, dynatemp_exponent=1,
                repeat_last_n=64, repeat_penalty=1, frequency_penalty=0, presence_penalty=0,
                dry_multiplier=0, dry_base=1.75, dry_allowed_length=2, dry_penalty_last_n=64,
                dry_sequence_breakers=['\n', ':', '"', '*'], mirostat=0, mirostat_tau=5, mirostat_eta=.1,
                adaptive_target=-1, adaptive_decay=.9, logit_bias=[], ignore_eos=False,
                samplers='penalties dry top_n_sigma top_k typ_p top_p min_p xtc temperature'.split(),
                    backend_sampling=False)
    opts = parse()
    assert {k: getattr(opts, k) for k in want} == want

def test_defaults_are_not_shared():
    parse('-r', 'x').reverse_prompt.append('y')
    parse().reverse_prompt.append('z')
    assert parse().reverse_prompt == []

@pytest.mark.parametrize('arg', ['--bogus', '--ctx', '--ctx-size=4', '-cnv2', 'word', '', '--', '-C'])
def test_unknown(arg): assert fails(arg) == f'error: invalid argument: {arg}'

def test_unknown_shows_the_dashes(): assert fails('--a_b') == 'error: invalid argument: --a-b'

def test_missing_value():
    text = fails('-c')
    assert text.startswith('error while handling argument "-c": expected value for argument')

@pytest.mark.parametrize('args', [['-c', 'x'], ['-c', '-1'], ['-c', '12abc'], ['-c', '1' * 5000], ['--temp',
                                  'nan'], ['--top-p', 'inf'], ['-n', '-3'], ['--repeat-last-n', '-1'],
                                  ['-fa', 'yes'], ['--override-kv', 'a=foo:1'], ['--override-kv', 'a'],
                                  ['--override-kv', 'a=int:x'], ['-s', '4294967296'], ['-l', '5'], ['-ctk',
                                  'q9'], ['--act-quant', 'q4'], ['-f', '/nonexistent/file'], ['-f', '/'],
                                      ['--mirostat', '3']])
def test_bad_value(args):
    text = fails(*args)
    assert text.startswith(f'error while handling argument "{args[0]}": ')
    assert '\n\nusage:\n' in text and text.endswith('to show complete usage, run with -h')
    assert args[0] in text.split('usage:')[1]

def test_unreadable_file_is_named(): assert '/nonexistent/file' in fails('-f', '/nonexistent/file')

def test_repeated_option_warns_and_the_last_wins():
    opts = parse('-c', '1', '--ctx-size', '2')
    assert opts.n_ctx == 2 and "argument '--ctx-size' specified multiple times" in opts.warnings[0]

def test_lists_do_not_warn(): assert parse('-r', 'a', '-r', 'b').warnings == []

def test_prompt_or_file_last_wins(tmp_path):
    (tmp_path/'p').write_bytes(b'Hi\n\n')
    assert parse('-p', 'x', '-f', str(tmp_path/'p')).prompt == 'Hi\n'          # one final newline dropped
    assert parse('-f', str(tmp_path/'p'), '-p', 'x').prompt == 'x'
    assert parse('-f', str(tmp_path/'p'), program='tokenize').prompt == 'Hi\n\n'

def test_file_bytes_survive(tmp_path):
    (tmp_path/'p').write_bytes(b'\xff\xc3\xa9')
    assert parse('-f', str(tmp_path/'p')).prompt.encode('utf-8', 'surrogateescape') == b'\xff\xc3\xa9'

def test_ignored_options_change_nothing():
    ignored = parse(*'-ngl 99 -fa on --no-mmap --mlock -gan 2 -gaw 512 --no-warmup'.split())
    for o in ('n_ctx', 'n_threads', 'device', 'type_k'): assert getattr(ignored, o) == getattr(parse(), o)

def test_one_spelling_means_what_the_program_says():
    assert parse('-p', '128,512', '-n', '0', program='bench').n_prompt == [128, 512]
    assert parse('-p', '128,512', program='tokenize').prompt == '128,512'
    assert fails('--ids', program='completion') == 'error: invalid argument: --ids'

def test_help_does_not_hide_a_mistake():
    assert parse('-h').action == 'help'
    assert 'invalid argument' in fails('-h', '--bogus')
    assert parse('--version', '--bogus').action == 'version'

# --- escapes and lists

@pytest.mark.parametrize('text, want', [
    (r'a\nb', 'a\nb'), (r'\r\t', '\r\t'), (r"\'\"\\", '\'"\\'), (r'\\n', r'\n'), (r'\x41', 'A'), (r'\x4',
    r'\x4'), (r'\xg1', r'\xg1'), (r'\q', r'\q'), ('end\\', 'end\\'), (r'\xc3\xa9', 'é'), (r'\é', r'\é'), ('',
        ''), (r'\0', r'\0')])
def test_escapes(text, want): assert process_escapes(text) == want

def test_escapes_on_and_off():   # llama.cpp #7384: typed \n against a newline
    assert parse('-p', r'a\nb').prompt == 'a\nb'
    assert parse('-p', r'a\nb', '--no-escape').prompt == r'a\nb'
    assert parse('--no-escape', '-p', 'a\nb').prompt == 'a\nb'
    assert parse('-m', r'C:\new').model == r'C:\new'

@given(st.text(alphabet=st.characters(exclude_characters='\\', exclude_categories=['Cs'])))
def test_text_without_backslash_is_untouched(text): assert process_escapes(text) == text

@pytest.mark.parametrize('text, want', [('a,b', ['a', 'b']), ('"a,b",c', ['a,b', 'c']), ('a""b', ['ab']),
                                        ('', ['']), ('"say ""hi"""', ['say "hi"']), (',', ['', '']),
                                            ('"open,x', ['open,x'])])
def test_csv_row(text, want): assert csv_row(text) == want

@given(st.lists(st.text(alphabet='ab,"\n '), min_size=1))
def test_csv_row_undoes_quoting(items):
    assert csv_row(','.join('"' + i.replace('"', '""') + '"' for i in items)) == items

# --- environment

def test_environment_and_the_flag_that_beats_it():
    assert parse(env={'LLAMA_ARG_CTX_SIZE': '64'}).n_ctx == 64
    opts = parse('-c', '128', env={'LLAMA_ARG_CTX_SIZE': '64'})
    assert opts.n_ctx == 128 and opts.warnings == [
        'warn: LLAMA_ARG_CTX_SIZE environment variable is set, '
        'but will be overwritten by command line argument -c']

@pytest.mark.parametrize('name, dest', [
    ('LLAMA_ARG_MODEL', 'model'), ('LLAMA_ARG_HF_REPO', 'hf_repo'), ('LLAMA_ARG_HF_FILE', 'hf_file'),
    ('HF_TOKEN', 'hf_token'), ('LLAMA_ARG_MODEL_URL', 'model_url'), ('LLAMA_ARG_DOCKER_REPO', 'docker_repo'),
        ('LLAMA_ARG_DEVICE', 'device')])
def test_variable_names(name, dest): assert getattr(parse(env={name: 'x'}), dest) == 'x'

@pytest.mark.parametrize('text, value', [('on', True), ('enabled', True), ('true', True), ('1', True),
                                         ('off', False), ('disabled', False), ('false', False), ('0', False)])
def test_booleans_in_the_environment(text, value):
    assert parse(env={'LLAMA_ARG_CONTEXT_SHIFT': text}).context_shift is value
    assert parse(env={'LLAMA_ARG_OFFLINE': text}).offline is value

@pytest.mark.parametrize('text', ['yes', '', 'TRUE', '2', 'auto'])
def test_other_booleans_are_errors(text):
    assert 'environment variable "LLAMA_ARG_CONTEXT_SHIFT"' in fails(env={'LLAMA_ARG_CONTEXT_SHIFT': text})

@pytest.mark.parametrize('text, value', [('auto', 'auto'), ('-1', 'auto'), ('on', True), ('0', False)])
def test_tristate(text, value): assert parse(env={'LLAMA_ARG_FLASH_ATTN': text}).flash_attn == value

@pytest.mark.parametrize('value', ['0', '1', '', 'x'])
def test_presence_of_the_negative_variable_is_no(value):
    assert parse(env={'LLAMA_ARG_NO_CONTEXT_SHIFT': value,
        'LLAMA_ARG_CONTEXT_SHIFT': '1'}).context_shift is False

def test_bad_number_names_the_variable():
    assert 'LLAMA_ARG_CTX_SIZE' in fails(env={'LLAMA_ARG_CTX_SIZE': 'x'})

# --- config files

def config(tmp_path, text, name='config.ini'):
    (tmp_path/name).write_text(text)
    return tmp_path/name

def test_config_and_its_sections(tmp_path):
    path = config(tmp_path,
        'n = 3\n[*]\nc = 256 ; note\ntemp = 0.5 # cold\n[other]\nc = 1\n[default]\nno-escape = true\n')
    opts = parse(configs=[path])
    assert (opts.n_ctx, opts.n_predict, opts.temperature, opts.escape) == (256, 3, .5, False)

@pytest.mark.parametrize('line, dest, value', [
    ('ctx-size = 5', 'n_ctx', 5), ('ctx_size = 5', 'n_ctx', 5), ('LLAMA_ARG_CTX_SIZE = 5', 'n_ctx', 5),
    ('no-context-shift = false', 'context_shift', True), ('context-shift = on', 'context_shift', True),
    ('m = /a b/c.gguf', 'model', '/a b/c.gguf'), ('r = a', 'reverse_prompt', ['a'])])
def test_config_keys(tmp_path, line, dest, value):
    assert getattr(parse(configs=[config(tmp_path, f'[*]\n{line}\n')]), dest) == value

def test_later_sources_win(tmp_path):
    system, user = config(tmp_path, 'c = 1\nn = 1\nb = 1\nub = 1', 'system'), config(tmp_path,
        'n = 2\nb = 2\nub = 2', 'user')
    opts = parse('-ub', '4', env={'LLAMA_ARG_BATCH': '3'}, configs=[system, user])
    assert (opts.n_ctx, opts.n_predict, opts.n_batch, opts.n_ubatch) == (1, 2, 3, 4)
    assert [opts.given[d][-1].source for d in ('n_ctx', 'n_predict', 'n_batch', 'n_ubatch')] == [
        str(system), str(user), 'env', 'flag']

def test_a_stronger_source_replaces_a_list(tmp_path):
    assert parse('-r', 'b', configs=[config(tmp_path, 'r = a')]).reverse_prompt == ['b']

def test_unknown_key_warns_but_a_key_of_another_program_does_not(tmp_path):
    path = config(tmp_path, 'version = 1\nctx_zise = 4\nids = true\n')
    assert parse(configs=[path]).warnings == [f"option 'ctx_zise' not recognized in {path}"]

def test_bad_line_and_bad_value_name_the_place(tmp_path):
    path = config(tmp_path, '[*]\nnonsense\n')
    assert f'{path}:2' in fails(configs=[path])
    path = config(tmp_path, 'c = many\n')
    assert str(path) in fails(configs=[path]) and "'c'" in fails(configs=[path])

def test_missing_config_is_no_error(tmp_path): assert parse(configs=[tmp_path/'none', tmp_path]).n_ctx == 0

def test_where_config_files_lie():
    assert [str(p) for p in config_files({'XDG_CONFIG_HOME': '/x', 'HOME': '/h'})] == [
        '/etc/llamaref/config.ini', '/x/llamaref/config.ini']
    assert str(config_files({'HOME': '/h'})[1]) == '/h/.config/llamaref/config.ini'
    assert len(config_files({})) == 1

def test_ini_sections_may_hold_anything():
    assert read_ini('[a/b:Q4 x]\nk.l-m_n = = 1') == {'a/b:Q4 x': {'k.l-m_n': '= 1'}}

# --- what else the table makes

@pytest.mark.parametrize('program', PROGRAMS)
def test_help_shows_every_option_in_its_section(program):
    text = help_text(TABLE, program)
    for name in spellings(TABLE, program): assert name in text
    heads = [line for line in text.splitlines() if line.startswith('-----')]
    order = [f'----- {s} params -----' for s in ('common', 'sampling', 'speculative', 'example-specific')]
    assert heads == [h for h in order if h in heads] and heads[0] == order[0]

@pytest.mark.parametrize('program', PROGRAMS)
def test_table_is_well_written(program):
    for o in rows_of(TABLE, program):
        assert o.help and not o.help.endswith('.') and o.dest.isidentifier()
        assert bool(o.hint) == bool(o.kind), o.names
        assert all(n.startswith('-') for n in o.names + o.off)
        assert all(len(line) <= 110 for line in usage(o).splitlines())

def test_docs_table_has_a_row_an_option():
    assert len(docs_table(TABLE, 'completion').splitlines()) == 2 + len(rows_of(TABLE, 'completion'))

def test_bash_line(): assert bash_words(TABLE, 'tokenize').endswith('llamaref-tokenize')

def test_as_args_gives_the_same_options():
    opts = parse('-c', '8', '-r', 'a', '-r', 'b', '--temp', '0', env={'LLAMA_ARG_NO_CONTEXT_SHIFT': '',
        'LLAMA_ARG_N_PREDICT': '5'})
    args = as_args(opts)
    assert '--no-context-shift' in args and args[args.index('--n-predict') + 1] == '5'
    again = parse(*args)
    assert {d: getattr(again, d) for d in opts.given} == {d: getattr(opts, d) for d in opts.given}
