"Hyperparameters and tensors of a file that lies: always a clear error, or a model that works"
import time

import numpy as np
import pytest

from conftest import data
from llamaref.compute.device import Device
from llamaref.errors import GGUFError, ModelError
from llamaref.files.gguf import GGUFFile, KVType
from llamaref.models.base import ARCHS, Decoder, find_arch, full_pass, read_hparams, register

DEV = Device.get('numpy')
FILES = {'llama': 'rnd-llama', 'qwen2': 'rnd-qwen2', 'qwen3': 'rnd-qwen3', 'gemma3': 'rnd-gemma3'}

def opened(arch, **kv):
    "A good file with some keys replaced or, with None, removed"
    f = GGUFFile(data('models', f'{FILES[arch]}.gguf'))
    for k, v in kv.items():
        key = k if '.' in k else f'{arch}.{k}'
        if v is None: f.kv.pop(key); f.kv_types.pop(key); continue
        f.kv[key] = v
        kind = KVType.FLOAT32 if isinstance(v, float) else KVType.INT64
        f.kv_types[key] = (KVType.ARRAY, KVType.INT32) if isinstance(v, np.ndarray) else (kind,)
    return f

def build(f): return find_arch(f.arch)(f, DEV)

NUMBERS = ['embedding_length', 'block_count', 'attention.head_count', 'attention.head_count_kv',
           'attention.key_length', 'attention.value_length', 'feed_forward_length',
           'rope.dimension_count', 'context_length']
EXTREMES = [0, -1, 1, 3, 2**31 - 1, 2**32, 2**63 - 1, -2**63]

@pytest.mark.parametrize('arch', FILES)
@pytest.mark.parametrize('key', NUMBERS)
def test_extreme_sizes(arch, key):
    for v in EXTREMES:
        t = time.perf_counter()
        f = opened(arch, **{f'{arch}.{key}': v})
        try: model = build(f)
        except (ModelError, GGUFError) as e: assert f'{FILES[arch]}.gguf: ' in str(e)
        else: assert np.isfinite(full_pass(model, [1, 2, 3])).all()
        assert time.perf_counter() - t < 5     # a hang, not a stopwatch

@pytest.mark.parametrize('v', [float('nan'), float('inf'), 0., -1., 1e38, 1e-38])
@pytest.mark.parametrize('key', [
    'attention.layer_norm_rms_epsilon', 'rope.freq_base', 'attention.scale', 'final_logit_softcapping'])
def test_extreme_floats(key, v):
    f = opened('gemma3', **{f'gemma3.{key}': v})
    try: model = build(f)
    except ModelError as e: assert key.split('.')[-1] in str(e)
    else: assert np.isfinite(full_pass(model, [1, 2, 3])).all()

@pytest.mark.parametrize('key', [
    'embedding_length', 'block_count', 'context_length', 'attention.head_count',
    'attention.layer_norm_rms_epsilon'])
def test_a_missing_required_key_is_named(key):
    with pytest.raises(GGUFError, match=f'key not found in model: llama.{key}'):
        build(opened('llama', **{f'llama.{key}': None}))

def test_per_layer_arrays():
    n = read_hparams(opened('llama')).n_layer
    heads = read_hparams(opened('llama')).n_head
    f = opened('llama', **{'llama.attention.head_count': np.array(heads, np.int32)})
    assert read_hparams(f).n_head == heads
    with pytest.raises(ModelError, match='entries'):
        read_hparams(opened('llama', **{'llama.attention.head_count': np.array(heads[:n-1], np.int32)}))

def test_heads_that_cannot_be_shared():
    with pytest.raises(ModelError, match='evenly'):
        read_hparams(opened('llama', **{'llama.attention.head_count_kv': 3}))

def test_missing_and_misshapen_tensors_are_named():
    f = opened('llama'); del f.tensors['blk.1.ffn_up.weight']
    with pytest.raises(GGUFError, match="missing tensor 'blk.1.ffn_up.weight'"): build(f)
    f = opened('llama'); f.tensors['blk.0.attn_q.weight'].shape = (5, 7)
    with pytest.raises(GGUFError, match=r'blk.0.attn_q.weight.*5, 7'): build(f)

def test_unknown_architecture_lists_the_known():
    with pytest.raises(ModelError) as e: find_arch('gpt-j')
    for name in FILES: assert name in str(e.value)

def test_a_new_architecture_needs_no_edit_elsewhere():
    @register('test-echo')
    class Echo(Decoder):
        def build(self, gguf, w, hp): self.hp.n_layer = 0
        def forward(self, step): return step.wanted(self.embed(step))
    try: assert full_pass(find_arch('test-echo')(opened('qwen3'), DEV), [1, 1]).shape[0] == 2
    finally: ARCHS.pop('test-echo')

def test_llama_whose_heads_turn_in_part_is_refused():
    with pytest.raises(ModelError, match='dimension_count'):
        build(opened('llama', **{'llama.rope.dimension_count': 4}))

def test_fused_qkv_is_the_same_model():
    "q, k and v stacked into one tensor give the same logits"
    f, g = opened('llama'), opened('llama')
    for i in range(read_hparams(f).n_layer):
        parts = [g.tensors.pop(f'blk.{i}.attn_{c}.weight') for c in 'qkv']
        t = f.tensors[f'blk.{i}.attn_q.weight']
        t.data, t.n_bytes = np.concatenate([p.data for p in parts]), sum(p.n_bytes for p in parts)
        t.shape = (sum(p.shape[0] for p in parts), parts[0].shape[1])
        g.tensors[f'blk.{i}.attn_qkv.weight'] = t
    f = opened('llama')
    np.testing.assert_allclose(full_pass(build(g), [1, 5, 9]), full_pass(build(f), [1, 5, 9]), atol=1e-5)

def test_scale_tensors_multiply_the_product():
    f = opened('llama')
    t = f.tensors['output_norm.weight']
    half = GGUFFile(data('models', 'rnd-llama.gguf')).tensors['output_norm.weight']
    half.name, half.shape, half.n_bytes = 'output.scale', (1,), 4
    half.data = np.array([.5], np.float32).view(np.uint8)
    want = full_pass(build(opened('llama')), [1, 5]) / 2
    f.tensors['output.scale'] = half
    np.testing.assert_allclose(full_pass(build(f), [1, 5]), want, atol=1e-6)
    assert t.shape != (1,)
