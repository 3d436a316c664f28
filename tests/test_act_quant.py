"Rounded activations: rounding, products of every format, the same bits in any form, whole models"
import json

import gguf
import numpy as np
import pytest
from conftest import data, real

import llamaref as lr
from llamaref.compute.act_quant import Q8_TYPES, floats_of, rounded
from llamaref.compute.device import Device, list_devices
from llamaref.errors import DeviceError, ModelError

NAMES = [n for n, _ in list_devices()]
f32 = np.float32

@pytest.fixture(params=['numpy', 'opencl:0'], scope='module')
def dev(request):
    if request.param not in NAMES: pytest.skip(f'no {request.param} device on this machine')
    return Device.get(request.param)

@pytest.fixture(scope='module')
def ocl():
    if 'opencl:0' not in NAMES: pytest.skip('no OpenCL device on this machine')
    return Device.get('opencl')

@pytest.fixture(scope='module')
def golden():
    "type -> (bytes, floats) of recorded blocks: what llama.cpp quantised, and arbitrary bytes"
    z = np.load(data('golden', 'quants.npz'))
    names = {k.lower(): k for k in z.files}
    def blocks(t):
        per, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[t.upper()]]
        raw = np.concatenate([z[names[f'{t}_{s}bytes']].reshape(-1, size) for s in ('', 'rand_')])
        val = np.concatenate([z[names[f'{t}_{s}floats']].reshape(-1, per) for s in ('', 'rand_')])
        ok = abs(val).max(1) < 1e5
        return raw[ok], val[ok].astype(np.float64)
    return {t: blocks(t) for t in Q8_TYPES}

def weight(golden, dev, t, N, K, rng):
    "A weight on the device and its float64 values, put together from recorded blocks"
    raw, val = golden[t]
    pick = rng.integers(0, len(raw), (N, K // val.shape[1]))
    return dev.upload(raw[pick].reshape(-1), t, (N, K)), val[pick].reshape(N, K)

def bits(a): return np.ascontiguousarray(a).view(np.uint32)
def same(a, b): np.testing.assert_array_equal(bits(a), bits(b))
def product(dev, x, w, bias=None): return dev.matmul_q8(dev.quantize_rows(dev.upload(x)), w, bias)


# ---- the rounding ----

def by_hand(x):
    "(steps, integers) of one block in plain Python"
    most = max(abs(float(v)) for v in x)
    return most / 127, [0 if most == 0 else round(float(v) * 127 / most) for v in x]

def test_steps_and_integers(dev):
    x = np.random.default_rng(0).normal(size=(3, 96)).astype(f32)
    x[1, 32:64] = 0
    x[2, :32] = np.arange(32) - 127                 # whole numbers of steps: exact
    xq = dev.quantize_rows(dev.upload(x)).numpy()
    assert xq.shape == (3, 3, 12) and xq.dtype == np.int32
    for block, got in zip(x.reshape(-1, 32), xq.reshape(-1, 12)):
        d, q = by_hand(block)
        head, ints = got[:4].view(f32), got[4:].view(np.int8)
        np.testing.assert_allclose(head[0], d, rtol=2e-7)
        assert abs(ints - np.array(q)).max() <= 1 and (ints != q).mean() < .02    # ties of the last bit
        assert [*head[1:]] == [ints[:16].sum(dtype=int), ints[16:].sum(dtype=int), ints.sum(dtype=int)]
    np.testing.assert_array_equal(floats_of(xq)[2, :32], x[2, :32])

def test_ties_go_to_even(dev):
    x = np.zeros((1, 32), f32)
    x[0, :6] = 127, .5, 1.5, 2.5, -.5, -1.5
    assert [*dev.quantize_rows(dev.upload(x)).numpy()[0, 0, 4:].view(np.int8)[:6]] == [127, 0, 2, 2, 0, -2]

def test_error_is_at_most_half_a_step(dev):
    x = np.random.default_rng(1).standard_cauchy((50, 320)).astype(f32)
    xq = dev.quantize_rows(dev.upload(x)).numpy()
    err = abs(floats_of(xq) - x).reshape(50, 10, 32)
    assert (err <= .50001 * abs(x).reshape(50, 10, 32).max(-1, keepdims=True) / 127).all()

def test_extreme_numbers(dev):
    x = np.array([[v] + [0.] * 31 for v in (0, 1e-45, -1e-38, 1e-31, 1e-29, 1e38, -3e38)], f32)
    got = floats_of(dev.quantize_rows(dev.upload(x)).numpy())
    np.testing.assert_allclose(got[4:], x[4:], rtol=3e-7)
    assert not got[:4].any()                        # below 2^-100 nothing is left
    x[0, 3], x[1, 5], x[2, 0] = np.nan, np.inf, -np.inf
    d = dev.quantize_rows(dev.upload(x)).numpy()[:, 0, 0].copy().view(f32)
    assert np.isnan(d[0]) and np.isinf(d[1]) and np.isinf(d[2]) and np.isfinite(d[3:]).all()

def test_both_devices_round_alike(ocl):
    x = np.random.default_rng(2).normal(size=(65, 1056)) * np.logspace(-30, 30, 65)[:, None]
    x = x.astype(f32)
    same(*(d.quantize_rows(d.upload(x)).numpy() for d in (ocl, Device.get('numpy'))))


# ---- products ----

def near(y, x, w, b=0.):
    "Within float rounding of the product of the numbers that the rounded rows stand for"
    x = x.astype(np.float64)
    assert (abs(y - (x @ w.T + b)) <= 1e-6 * (abs(x) @ abs(w).T + abs(b)) + 1e-37).all()

@pytest.mark.parametrize('t', Q8_TYPES)
def test_every_format_bit_for_bit_in_any_company(dev, golden, t):
    rng, numpy = np.random.default_rng(3), dev.name == 'numpy'
    per = golden[t][1].shape[1]
    for N in (3, 65) if numpy else (1, 3, 15, 16, 17, 63, 65):
        for K in {per, 3*per, 1056 // per * per + per}:
            w, values = weight(golden, dev, t, N, K, rng)
            x, b = rng.normal(size=(70, K)).astype(f32), rng.normal(size=N).astype(f32)
            db = dev.upload(b)
            every = product(dev, x, w, db).numpy()
            near(every, floats_of(dev.quantize_rows(dev.upload(x)).numpy()), values, b)
            for T in (1, 2, 3, 8, 33, 65):
                a = int(rng.integers(0, 71 - T))
                same(product(dev, x[a:a + T].copy(), w, db).numpy(), every[a:a + T])

def test_long_prompts_and_views(ocl, golden):
    rng = np.random.default_rng(4)
    for t in ('q4_1', 'q6_k'):
        w, values = weight(golden, ocl, t, 41, 768, rng)
        x = rng.normal(size=(500, 768)).astype(f32)
        y = product(ocl, x, w).numpy()
        near(y, floats_of(ocl.quantize_rows(ocl.upload(x)).numpy()), values)
        same(product(ocl, x[499:].copy(), w).numpy(), y[499:])
        same(product(ocl, x[:5].copy(), w.rows(7, 30)).numpy(), y[:5, 7:30])
        same(ocl.matmul_q8(ocl.quantize_rows(ocl.upload(x).rows(3, 9)), w).numpy(), y[3:9])

def test_about_half_a_percent_of_the_largest_output(dev, golden):
    "The documented error, whatever the format"
    rng = np.random.default_rng(5)
    for t in ('q4_1', 'q8_0', 'q4_k', 'iq4_nl'):
        w, values = weight(golden, dev, t, 64, 512, rng)
        values = values[keep := abs(values).max(1) > 1e-3]
        x = rng.normal(size=(9, 512)).astype(f32)
        e = product(dev, x, w).numpy()[:, keep] - x.astype(float) @ values.T
        scale = abs(x @ values.T)
        assert .0003 < abs(e).max() / scale.max() < .02
        assert .003 < np.sqrt((e**2).mean() / (scale**2).mean()) < .008

@pytest.mark.parametrize('t', Q8_TYPES)
def test_without_special_instructions(ocl, golden, t):
    "Other lanes, other instructions, other tiles: the same bits"
    import pyopencl as cl
    rng = np.random.default_rng(6)
    w, _ = weight(golden, ocl, t, 37, 768, rng)
    xq = ocl.quantize_rows(ocl.upload(rng.normal(size=(11, 768)).astype(f32)))
    want = ocl.matmul_q8(xq, w).numpy()
    plain = {'q4_1': '-DPLAIN', 'q6_k': '-DPLAIN -DVR=1', 'iq4_nl': '-DPLAIN',
             'q8_0': '-DPLAIN -DQTOKS=3 -DQCHUNK=256 -DQTCHUNK=5'}
    for defs in ('-DVR=8', *([plain[t]] if t in plain else [])):
        k = cl.Kernel(ocl.program('matmul_q8', (f'-DWTYPE_{t.upper()}', *defs.split())), 'matmul_q8')
        y = ocl.empty((11, 37))
        k.set_args(*map(np.int32, (11, 37, 768)), xq.handle, w.handle, None, y.handle)
        cl.enqueue_nd_range_kernel(ocl.queue, k, (5,), (1,))
        same(y.numpy(), want)

@pytest.mark.parametrize('t', ('q8_0', 'iq4_nl', 'q5_1', 'q6_k'))
def test_nothing_saturates(ocl, t):
    "Largest integers on both sides: all bytes 0, all 255, rows of 127 and of -127"
    per, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[t.upper()]]
    one = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    for byte in (0, 0x80, 0xff, 0x7f):
        raw = np.full((16, 2, size), byte, np.uint8)
        for at in {'q6_k': (208,), 'q5_1': (0, 2)}.get(t, (0,)): raw[..., at:at + 2] = one
        want = gguf.quants.dequantize(raw.reshape(16, -1), gguf.GGMLQuantizationType[t.upper()]).astype(float)
        x = np.repeat(np.array([[127], [-127]], f32), 2*per, 1)
        y = product(ocl, x, ocl.upload(raw.reshape(-1), t, (16, 2*per))).numpy()
        np.testing.assert_allclose(y, x @ want.T, rtol=1e-6)

def test_a_bad_number_stays_in_its_row(dev, golden):
    rng = np.random.default_rng(7)
    w, _ = weight(golden, dev, 'q5_0', 20, 96, rng)
    x = rng.normal(size=(6, 96)).astype(f32)
    good = product(dev, x, w).numpy()
    x[2, 5], x[4, 0] = np.nan, np.inf
    bad = product(dev, x, w).numpy()
    assert np.isnan(bad[2]).all() and not np.isfinite(bad[4]).any()
    same(bad[[0, 1, 3, 5]], good[[0, 1, 3, 5]])

def test_empty_and_wrong_calls(dev, golden):
    w, _ = weight(golden, dev, 'q4_0', 9, 64, np.random.default_rng(8))
    assert product(dev, np.zeros((0, 64), f32), w).shape == (0, 9)
    if dev.name != 'numpy': assert product(dev, np.zeros((4, 64), f32), w.rows(3, 3)).shape == (4, 0)
    wrong = lambda match: pytest.raises(DeviceError, match=match)
    with wrong('K % 32 == 0'): dev.quantize_rows(dev.zeros((2, 40)))
    with wrong(r'wanted q4_0 or'): product(dev, np.zeros((2, 64), f32), dev.zeros((9, 64)))
    with wrong(r'K == 32\*B'): product(dev, np.zeros((2, 32), f32), w)

def test_rounded_once_in_a_plan_and_anew_outside(dev, golden):
    w, _ = weight(golden, dev, 'q4_1', 9, 64, np.random.default_rng(9))
    a = np.random.default_rng(10).normal(size=(2, 2, 64)).astype(f32)
    x = dev.upload(a[0].copy())
    with dev.record() as plan: ys = [dev.matmul_q8(rounded(x), w) for _ in range(3)]
    with dev.record() as other: dev.matmul_q8(rounded(x), w)
    assert plan.kinds() == {'quantize_rows': 1, 'matmul_q8': 3} and other.kinds()['quantize_rows'] == 1
    for i in (0, 1):
        x.write(a[i])
        plan.run(); dev.sync()
        for y in ys: same(y.numpy(), product(dev, a[i], w).numpy())
        same(dev.matmul_q8(rounded(x), w).numpy(), ys[0].numpy())


# ---- whole models ----

def rms(a): return float(np.sqrt((a.astype(float)**2).mean()))

def model(dev, name='rnd-llama-mixed', act_quant='q8'):
    return lr.load(data('models', f'{name}.gguf'), dev, act_quant=act_quant)

@pytest.mark.parametrize('p', ('p0', 'p1', 'p2'))
def test_as_near_to_float_as_the_peer(dev, p):
    "llama.cpp's own run with 8-bit activations is the yardstick"
    z = np.load(data('golden', 'rnd-llama-mixed.npz'))
    y = lr.Context(model(dev), n_ctx=128).decode(z[f'{p}_ids'], logits='all').logits
    exact, peer = z[f'{p}_logits'], z[f'{p}_logits_8bit_activations']
    assert .01 < rms(y - exact) <= rms(peer - exact)
    assert abs(y - exact).max() < .35 and rms(y - peer) < .1

def test_a_model_alone_in_company_eager_and_replayed(ocl):
    "The same bits for 1, 2, 3, 8, 33 and all rows at once; the peer's move by 0.14"
    ids = np.load(data('golden', 'rnd-llama-mixed.npz'))['p1_ids']
    m = model(ocl)
    whole = lr.Context(m, n_ctx=128).decode(ids, logits='all').logits
    for T in (1, 2, 3, 8, 33):
        ctx = lr.Context(m, n_ctx=128)
        parts = [ctx.decode(ids[i:i + T], logits='all').logits for i in range(0, len(ids), T)]
        same(np.concatenate(parts), whole)
    eager = lr.Context(m, n_ctx=128).decode(ids, logits='all', tap=lambda *_: None)
    same(eager.logits, whole)

def test_float_weights_are_multiplied_as_they_are(dev):
    ids = [1, 5, 7]
    ctx = lambda a: lr.Context(model(dev, 'rnd-qwen3', a), n_ctx=64)
    y = [ctx(a).decode(ids, logits='all').logits for a in ('off', 'q8')]
    same(*y)

def test_a_wrong_word(dev):
    with pytest.raises(ModelError, match="act_quant is 'q4'; it must be off or q8"):
        model(dev, 'rnd-qwen3', 'q4')

@pytest.mark.real
@pytest.mark.parametrize('file', ('SmolLM2-135M-Instruct.Q4_1.gguf', 'gemma-3-270m-q4_k_m.gguf'))
def test_real_models_within_the_peers_own_spread(ocl, file):
    "Log-probabilities after each prompt: as near to float as llama.cpp's quantised run, over all prompts"
    table = file.lower().removesuffix('.gguf').replace('.', '-')
    gold = json.load(open(data('golden', f'real-{table}.json'), encoding='utf-8'))
    m = lr.load(real(file), ocl, act_quant='q8')
    ours, peers = [], []
    for p in gold['prompts']:
        ids = p['prompt_ids']
        if len(ids) > 256: continue
        z = lr.Context(m, n_ctx=512).decode(ids).row(-1).astype(float)
        logp = z - z.max() - np.log(np.exp(z - z.max()).sum())
        exact, peer = (dict(map(tuple, p[k]['top20_first'])) for k in ('float', 'quantised'))
        top = list(exact)[:5]
        ours += [logp[i] - exact[i] for i in top]
        peers += [peer[i] - exact[i] for i in top if i in peer]
    assert max(map(abs, ours)) < .5
    assert .005 < rms(np.array(ours)) < 1.2 * rms(np.array(peers))
