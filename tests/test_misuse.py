"What callers and files do wrong: our own error that names it, never a foreign one, a hang or much memory"
import threading
import tracemalloc

import numpy as np
import pytest

import llamaref as lr
from conftest import data
from llamaref.errors import ContextError, GGUFError, LlamarefError, ModelError, VocabError
from llamaref.files.gguf import GGUFFile, KVType
from llamaref.models.base import find_arch

@pytest.fixture(scope='module')
def model(): return lr.load(data('models', 'rnd-qwen3.gguf'), 'numpy')

@pytest.fixture
def ctx(model): return lr.Context(model, n_ctx=256, n_seq_max=2)

BAD = ['64', None, 1.5, float('nan'), [1], True]

@pytest.mark.parametrize('v', BAD)
@pytest.mark.parametrize('name', ['n_ctx', 'n_batch', 'n_ubatch', 'n_seq_max', 'n_outputs_max'])
def test_sizes_are_integers(model, name, v):
    with pytest.raises(ContextError, match=f'{name} is .*must be an integer'):
        lr.Context(model, **{'n_ctx': 256, name: v})

def test_numpy_sizes_are_fine(model): assert lr.Context(model, n_ctx=np.int64(256)).n_ctx == 256

@pytest.mark.parametrize('n', [2**31, 2**40, 2**70])
def test_a_context_that_no_machine_holds_is_refused_before_it_is_made(model, n):
    tracemalloc.start()
    with pytest.raises(ContextError): lr.Context(model, n_ctx=n)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()

def test_a_trained_context_that_no_machine_holds(model):
    big = lr.load(data('models', 'rnd-llama.gguf'), 'numpy', override={'llama.context_length': 2**31 - 5})
    with pytest.raises(ContextError, match='choose a smaller n_ctx|n_ctx'): lr.Context(big)

@pytest.mark.parametrize('what', [None, 'model.gguf', 5])
def test_a_context_of_something_else(what):
    with pytest.raises(ContextError, match='model is'): lr.Context(what)

@pytest.mark.parametrize('kw', [
    dict(batch=5), dict(batch=None), dict(batch='abc'), dict(batch=[1.5]), dict(batch=[1], seq_id=None),
    dict(batch=[1], seq_id=1.), dict(batch=[1], logits=None), dict(batch=[1], logits=1)])
def test_decode_of_something_else(ctx, kw):
    with pytest.raises(ContextError): ctx.decode(**kw)
    assert ctx.memory.seq_pos_max(0) == -1

def test_rows_of_embeddings_are_refused(ctx):
    with pytest.raises(ContextError, match='embeddings'): ctx.decode(lr.Batch(None, embd=np.zeros((2, 32))))
    with pytest.raises(ContextError, match='embeddings'): ctx.decode(lr.Batch([1, 2], embd=np.ones((2, 32))))

@pytest.mark.parametrize('i', ['0', None, 1., True])
def test_a_row_by_something_else(ctx, i):
    with pytest.raises(ContextError, match='row is'): ctx.decode([1, 2], logits='all').row(i)

@pytest.mark.parametrize('call', [
    lambda m: m.seq_rm('0'), lambda m: m.seq_rm(0, 1.5, 2), lambda m: m.seq_cp(0, None),
    lambda m: m.seq_pos_max('0'),     lambda m: m.seq_add(0, 0, -1, 1.5),
    lambda m: m.seq_div(0, 0, -1, '2'), lambda m: m.seq_keep(2),
    lambda m: m.seq_keep(None)])
def test_memory_verbs_with_something_else(ctx, call):
    ctx.decode([1, 2, 3])
    with pytest.raises(ContextError): call(ctx.memory)
    assert (ctx.memory.seq_pos_min(0), ctx.memory.seq_pos_max(0)) == (0, 2)

@pytest.mark.parametrize('call, left', [
    (lambda m: m.seq_rm(0, 2, 2**31), (0, 1)), (lambda m: m.seq_rm(0, 2**31, -1), (0, 3)),
    (lambda m: m.seq_rm(0, 1, 2**70), (0, 0)),
    (lambda m: m.seq_div(0, 0, -1, 2**40), (0, 0)), (lambda m: m.seq_add(0, 0, -1, -2**40), (-1, -1)),
    (lambda m: m.seq_add(0, 0, -1, -2**31), (-1, -1))])
def test_ranges_beyond_32_bits_are_open_ends(ctx, call, left):
    ctx.decode([1, 2, 3, 4])
    call(ctx.memory)
    assert (ctx.memory.seq_pos_min(0), ctx.memory.seq_pos_max(0)) == left

def test_a_context_in_two_threads_is_refused_or_right(model):
    "One at a time: a second thread is turned away, and whoever gets through has the right logits"
    want = lr.Context(model, n_ctx=256).decode([1, 2, 3]).logits
    ctx, got, refused = lr.Context(model, n_ctx=256, n_seq_max=4), [], []
    def work(s):
        for _ in range(30):
            try: got.append(ctx.decode([1, 2, 3], seq_id=s).logits); ctx.memory.seq_rm(s)
            except ContextError as e: refused.append(str(e))
    gate = ctx.lock
    gate.acquire()
    with pytest.raises(ContextError, match='another thread'): ctx.decode([1])
    gate.release()
    threads = [threading.Thread(target=work, args=(s,)) for s in range(2)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert got and all('another thread' in r for r in refused)
    for y in got: np.testing.assert_allclose(y, want, atol=1e-4)

@pytest.mark.parametrize('path', [5, None, 'a\0b', 'a' * 5000, b'/x'])
def test_a_path_that_is_none(path):
    with pytest.raises(LlamarefError): lr.load(path, 'numpy')

@pytest.mark.parametrize('override', [{'a': None}, {'a': [1]}])
def test_overrides_of_other_kinds(override):
    with pytest.raises(ModelError, match='override of a'):
        lr.load(data('models', 'rnd-llama.gguf'), 'numpy', override=override)

def lying(base, key, value, kind):
    f = GGUFFile(data('models', f'{base}.gguf'))
    f.kv[key], f.kv_types[key] = value, kind
    return f

@pytest.mark.parametrize('base, key, value, kind', [
    ('rnd-llama', 'llama.nextn_predict_layers', -10**8, (KVType.INT64,)),
    ('rnd-llama', 'llama.nextn_predict_layers', 3, (KVType.INT64,)),
    ('rnd-llama', 'llama.nextn_predict_layers', -2**63, (KVType.INT64,)),
    ('rnd-llama', 'llama.attention.head_count', [b'a', b'b', b'c'], (KVType.ARRAY, KVType.STRING)),
    ('rnd-llama', 'llama.feed_forward_length', np.full(3, np.nan), (KVType.ARRAY, KVType.FLOAT64)),
    ('rnd-gemma3', 'gemma3.attention.sliding_window_pattern', 1.5, (KVType.FLOAT32,)),
    ('rnd-gemma3', 'gemma3.attention.sliding_window', -5, (KVType.INT64,)),
    ('rnd-gemma3', 'gemma3.attention.sliding_window', 2**31, (KVType.INT64,)),
    ('rnd-gemma3', 'gemma3.rope.freq_base_swa', float('inf'), (KVType.FLOAT32,)),
    ('rnd-gemma3', 'gemma3.rope.freq_base_swa', -1., (KVType.FLOAT32,)),
    ('rnd-llama-yarn', 'llama.rope.scaling.original_context_length', -5, (KVType.INT64,)),
    ('rnd-llama-yarn', 'llama.rope.scaling.attn_factor', float('inf'), (KVType.FLOAT32,))])
def test_metadata_that_lies_is_refused_at_load(base, key, value, kind):
    f = lying(base, key, value, kind)
    with pytest.raises((ModelError, GGUFError)) as e: find_arch(f.arch)(f, lr.Device.get('numpy'))
    assert key in str(e.value) and f'{base}.gguf' in str(e.value)

@pytest.mark.parametrize('type', ['IQ2_XXS', 'Q8_K', 'I32', 'F64', 'TQ1_0'])
def test_weights_of_a_kind_no_device_computes_are_refused_at_load(type):
    from llamaref.files.gguf import GGMLType
    f = GGUFFile(data('models', 'rnd-llama.gguf'))
    f.tensors['blk.0.attn_q.weight'].type = GGMLType[type]
    with pytest.raises(ModelError, match=f"blk.0.attn_q.weight' is {type}"):
        find_arch('llama')(f, lr.Device.get('numpy'))

def test_a_vocabulary_error_names_the_file(tmp_path):
    from llamaref.files.writer import write_gguf
    f = GGUFFile(data('models', 'rnd-llama.gguf'))
    kv, types = dict(f.kv), dict(f.kv_types)
    kv['tokenizer.ggml.model'] = 'nosuch'
    write_gguf(tmp_path/'bad.gguf', kv, f.tensors, types)
    with pytest.raises(VocabError, match='bad.gguf'): lr.load(tmp_path/'bad.gguf', 'numpy')
